--[[
split: splits the claimed job into shards. Any worker can claim a shard like a job. This attempt ends uncharged.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job
ARGV[2] token  of the attempt
ARGV[3] n      2 to 1024

Returns "ok" or "stale".
Holds   a job that was cancelled meanwhile ends as cancelled: "stale". The parent is running, without a lease, until its
        last part arrives or one shard is dead.
Cost    O(n log N).
--]]
local function shards_make(job, n)
    local wait = PREFIX .. 'begun:' .. job.flow .. ':' .. job.class .. ':' .. job.priority
    local entries = {}
    for k = 0, n - 1 do
        call('HSET', PREFIX .. 'job:' .. job.id .. '@' .. k, 'state', 'queued', 'run', job.run, 'step', job.step, 'variant',
            job.variant, 'suite', job.suite, 'class', job.class, 'priority', job.priority, 'place', job.place, 'submitted',
            job.submitted or NOW, 'shards', n)
        entries[#entries + 1] = job.place
        entries[#entries + 1] = job.tag .. '@' .. k
        if #entries == 400 or k == n - 1 then
            call('ZADD', wait, unpack(entries))
            entries = {}
        end
    end
end

verb('split', 'drain', function(args)
    args_exactly(args, 3, 'id token n')
    local key = Job.parse(args[1])
    if not key or key.shard then
        refuse('\'' .. args[1]:sub(1, 60) .. '\' is no job that can be split')
    end
    local n = integer_arg(args, 3, 2, 1024, 'n')
    local job, found = Job.held_by(args[1], args[2])
    if not job then
        return found and Job.repeated_word(found, args[2], 'split') and 'ok' or 'stale'
    end
    if job.cancel and job.cancel ~= '' then -- No shard hears of it: all would be evaluated.
        Job.finish(job, 'cancelled', job.cancel, 'cancel')
        return 'stale'
    end
    if job.merge == '1' or job.shards then
        refuse('\'' .. args[1] .. '\' was split before')
    end
    call('UNLINK', PREFIX .. 'part:' .. job.id)
    shards_make(job, n)
    local attempts = math.max(job.attempts - 1, 0)
    Job.place(job, 'sharded', nil, { 'shards', n, 'attempts', attempts, 'token', '', 'last', Job.last_word(job, 'split ok') })
    Flow.wake(job.class)
    return 'ok'
end)
