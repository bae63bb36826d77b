--[[
retry: queues a job again that ended without a result.

KEYS[1] prefix  "evalq:{queue}:"
ARGV[1] id      job that is dead, skipped or cancelled
ARGV[2] request "", or of its caller's; the same again returns the same (lost reply). May be left out

Returns {"queued", id}: id is a new generation when something had been published, and the same while what an earlier
        retry of the job queued has not ended; {"not_found"}; {"refused", reason}.
Holds   the job keeps its place in the flow. Its class is looked up again, because its number may belong to another class now.
Cost    O(log n).
--]]
local FORGOTTEN = { 'crashes', 'crashed_on', 'lost', 'incomplete', 'alone', 'cancel', 'ended', 'suspect', 'hb', 'due',
    'shards', 'merge', 'started', 'worker', 'status', 'progress', 'total', 'reason', 'last' }

-- If this retry was made before: the job that it queued, for the same answer.
local function repeated(job, request)
    local gen, before = (call('HGET', PREFIX .. 'job:' .. job.id, 'retried') or ''):match('^(%d+) (.*)$')
    if not gen then
        return nil
    end
    local id = tonumber(gen) == job.gen and job.id or job.base .. '~' .. gen
    if (request ~= '' and request == before) or OPEN[call('HGET', PREFIX .. 'job:' .. id, 'state')] then
        return id
    end
    return nil
end

--[[
Returns the class that a submit of the same message would get; nil: there are too many. The job's old class number may
belong to another class by now. If the message cannot be read, the job keeps its number, and the worker that claims it
reports the error.
--]]
local function class_anew(job, record)
    local read, message = pcall(cmsgpack.unpack, record)
    local needs = read and type(message) == 'table' and message.needs
    local told, text = pcall(Submit.needs_text, needs or {})
    if not read or not told then
        return job.class
    end
    return (Flow.make_class(job.suite, needs and text or '*'))
end

local function again(job)
    call('ZREM', PREFIX .. 'ended:' .. job.state, job.id)
    Job.count(job, job.state, -1)
    call('HDEL', PREFIX .. 'job:' .. job.id, unpack(FORGOTTEN))
    job.state, job.merge, job.shards, job.attempts = '', nil, nil, 0
    call('ZADD', Job.open_key(job), job.place, job.tag)
    Job.queue(job, { 'class', job.class, 'attempts', 0, 'token', '', 'retries', text_of(Job.retries(job) + 1) })
    return job.id
end

local function next_generation(job, record)
    local gen = job.gen + 1
    local fresh = { run = job.run, step = job.step, variant = job.variant, suite = job.suite, priority = job.priority,
        fingerprint = job.fingerprint or '', keep = job.keep or '0', flow = job.flow, base = job.base }
    local id = job.base .. '~' .. gen
    local new, fields = Submit.new_job(fresh, id, gen, job.class, job.place)
    call('HSET', PREFIX .. 'gens:' .. job.flow, job.step, gen)
    call('HSET', PREFIX .. 'flow:' .. job.flow, 'gens', 1)
    Queue.bump('submitted', 1)
    call('SET', PREFIX .. 'msg:' .. id, record)
    call('ZADD', Job.open_key(new), new.place, new.tag)
    Job.place(new, 'queued', nil, fields)
    return id, new
end

verb('retry', 'drain', function(args)
    local request = args[2] or ''
    if #args ~= 2 then
        args_exactly(args, 1, 'id, then a request or nothing')
    elseif request ~= '' then
        label_arg(args, 2, 40, 'request')
    end
    local key = Job.parse(args[1])
    if not key or key.shard then
        refuse('\'' .. args[1]:sub(1, 60) .. '\' is no job id')
    end
    local job = Job.load(args[1])
    if not job or not Job.is_sane(job) then
        return { 'not_found' }
    end
    local before = repeated(job, request)
    if before then
        return { 'queued', before }
    end
    if job.state ~= 'dead' and job.state ~= 'skipped' and job.state ~= 'cancelled' then
        return { 'refused', 'it is ' .. job.state }
    end
    local latest = tonumber(call('HGET', PREFIX .. 'gens:' .. job.flow, job.step)) or 1
    if job.gen ~= latest then
        return { 'refused', 'it was followed by ' .. job.base .. '~' .. text_of(latest) }
    end
    local record = call('GET', PREFIX .. 'msg:' .. job.id)
    if not record then
        return { 'refused', 'its message is gone' }
    end
    local class = class_anew(job, record)
    if not class then
        return { 'refused', Submit.CLASSES_FULL }
    end
    job.class = class
    local id
    local further = (tonumber(job.tasks) or 0) > 0
    call('HSET', PREFIX .. 'job:' .. job.id, 'retried', text_of(job.gen + (further and 1 or 0)) .. ' ' .. request)
    if further then
        id, job = next_generation(job, record)
    else
        id = again(job)
    end
    if call('HGET', PREFIX .. 'flow:' .. job.flow, 'policy') == 'backfill' then
        Backfill.note(job.flow, job.class, job.priority, tonumber(job.place))
    end
    return { 'queued', id }
end)
