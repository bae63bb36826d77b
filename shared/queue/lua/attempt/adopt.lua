--[[
adopt: after Redis lost its data, registers a running job again.

KEYS[1] prefix   "evalq:{queue}:"
ARGV[1] worker   id of the process that runs it
ARGV[2] lease_ms 1 to 3600000
ARGV[3] id       as it was claimed
ARGV[4] token    as it was claimed
ARGV[5] attempt  1 or more
ARGV[6..17]      run session step variant suite policy band keep fingerprint needs_given needs record, as submit's

Returns "ok", or "stale": another attempt holds it, it has ended, or it is a shard, whose parent starts anew.
Holds   if the job was submitted again and still waits, it is the same job: it is now running, with this token.
Cost    O(log n).
--]]
local function adopted_new(submit, key, flow)
    local class = Flow.make_class(submit.suite, submit.class_needs)
    if not class then
        return nil
    end
    local place, ord = Submit.place_of(flow, submit.session, submit.step_number)
    Submit.note_flow(submit, flow, place, ord)
    Queue.bump('submitted', 1)
    local job, fields = Submit.new_job(submit, key.base .. (key.gen > 1 and '~' .. key.gen or ''), key.gen, class, text_of(place))
    if key.gen > 1 then
        call('HSET', PREFIX .. 'gens:' .. submit.flow, submit.step, key.gen)
        call('HSET', PREFIX .. 'flow:' .. submit.flow, 'gens', 1)
    end
    call('SET', PREFIX .. 'msg:' .. job.id, submit.record)
    call('ZADD', Job.open_key(job), job.place, job.tag)
    return job, fields
end

local function may_adopt(job, submit, token)
    if not job then
        return true
    end
    local same = not job.fingerprint or submit.fingerprint == '' or job.fingerprint == submit.fingerprint
    return Job.is_sane(job) and (job.token == token or ((job.state == 'queued' or job.state == 'delayed') and same and
        (not job.token or job.token == '') and not job.shards))
end

verb('adopt', 'drain', function(args)
    args_exactly(args, 17, 'worker lease_ms id token attempt, then run to record without delay')
    local worker = label_arg(args, 1, 64, 'worker')
    local lease = integer_arg(args, 2, 1, LEASE_MS_MAX, 'lease_ms')
    local key = Job.parse(args[3])
    local counter, nonce = (args[4] or ''):match('^(%d+)%.(%x+)$')
    if not key or not counter or #counter > 15 or #nonce > 40 then
        refuse('id and token must be those of a claim')
    end
    local attempt = integer_arg(args, 5, 1, 1000000, 'attempt')
    local submit, wrong = Submit.read({ args[6], args[7], args[8], args[9], args[10], args[11], args[12], args[13],
        args[14], args[15], args[16], '0', args[17] }, 1)
    if not submit then
        refuse(wrong)
    end
    if submit.base ~= key.base then
        refuse('the message is that of \'' .. submit.base .. '\'')
    end
    local job = not key.shard and Job.load(args[3])
    if key.shard or not may_adopt(job, submit, args[4]) then
        return 'stale'
    end
    local fields = {}
    if job and job.state == 'running' then
        return 'ok'
    end
    if not job then
        job, fields = adopted_new(submit, key, Submit.load_flow(submit.flow))
        if not job then
            refuse('no class is free')
        end
    end
    for _, value in ipairs({ 'token', args[4], 'attempts', attempt, 'worker', worker, 'started', NOW, 'lease', lease,
        'hb', 0, 'suspect', '' }) do
        fields[#fields + 1] = value
    end
    Job.place(job, 'running', NOW + lease, fields)
    Queue.set_meta('token', math.max(Queue.meta().token, tonumber(counter)))
    Queue.bump('adopted', 1)
    return 'ok'
end)
