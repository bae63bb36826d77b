--[[
publish: publishes the result of one task, once.

KEYS[1] prefix         "evalq:{queue}:"
ARGV[1] id             job
ARGV[2] token          of the attempt
ARGV[3] task           1 to 32 of [A-Za-z0-9._-]
ARGV[4] weights_digest "" or up to 64 characters; the first publish fixes it for the job
ARGV[5] suite_digest   likewise
ARGV[6] record         the result, a msgpack map of at most 64 KiB
ARGV[7] nfields        0 to 300
ARGV[8...]             nfields times field value: text of the stream entry

Returns "ok", "duplicate" (the task has its result), "stale", or "changed" (other weights or suite than the first
        publish: the job has ended as skipped).
Holds   at most one entry per (job, task); state and entry change in one step.
Cost    O(log n).
--]]
local function check(args)
    if not Job.parse(args[1]) then
        refuse('\'' .. tostring(args[1]):sub(1, 60) .. '\' is no job id')
    end
    if not name_ok(args[3], 32) then
        refuse('task must be 1 to 32 of [A-Za-z0-9._-]')
    end
    if #args[4] > 64 or args[4]:find('%W') or #args[5] > 64 or args[5]:find('%W') then
        refuse('digests are at most 64 letters and digits')
    end
    if #args[6] > 65536 or not args[6]:find('^[\128-\143\222\223]') then
        refuse('the result record must be a msgpack map of at most 65536 bytes')
    end
    local n = integer_arg(args, 7, 0, 300, 'nfields')
    args_exactly(args, 7 + 2 * n, 'id token task weights suite record nfields, then field value')
end

verb('publish', 'drain', function(args)
    if #args < 7 then
        refuse('expected id token task weights_digest suite_digest record nfields')
    end
    check(args)
    local id, token, task, weights, suite = args[1], args[2], args[3], args[4], args[5]
    local job, found = Job.held_by(id, token)
    if not job then
        if found and token ~= '' and Job.repeated_word(found, token, 'done') and
            call('HEXISTS', PREFIX .. 'res:' .. id, task) == 1 then
            return 'duplicate'
        end
        if found and Job.repeated_word(found, token, 'changed') then
            return 'changed'
        end
        return 'stale'
    end
    if job.shard then
        refuse('a shard hands in its part; the merge publishes')
    end
    local digests = call('HMGET', PREFIX .. 'job:' .. id, 'weights', 'definition')
    local other = (digests[1] and weights ~= '' and digests[1] ~= weights and 'weights') or
        (digests[2] and suite ~= '' and digests[2] ~= suite and 'suite')
    if other then
        Job.finish(job, 'skipped', 'changed: other ' .. other .. ' than the first published task', 'changed')
        return 'changed'
    end
    if call('HSETNX', PREFIX .. 'res:' .. id, task, args[6]) == 0 then
        return 'duplicate'
    end
    local fields = {}
    if not digests[1] and weights ~= '' then
        fields = { 'weights', weights }
    end
    if not digests[2] and suite ~= '' then
        fields[#fields + 1] = 'definition'
        fields[#fields + 1] = suite
    end
    if #fields > 0 then
        call('HSET', PREFIX .. 'job:' .. id, unpack(fields))
    end
    call('HINCRBY', PREFIX .. 'job:' .. id, 'tasks', 1)
    local extra = {}
    for i = 8, #args do
        extra[#extra + 1] = args[i]
    end
    Results.add(job, task, 'done', '', extra, args[6])
    Results.index(job, task)
    Queue.bump('published', 1)
    return 'ok'
end)
