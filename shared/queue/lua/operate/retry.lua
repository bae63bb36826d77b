--[[
retry: a job that ended without a result is wanted again, by hand.

KEYS[1] prefix  "evalq:{queue}:"
ARGV[1] id      job that is dead, skipped or cancelled
ARGV[2] request "", or of its caller's; the same again returns the same (lost reply). May be left out

Returns {"queued", id}: id is a new generation when something had been published, and the same while what an earlier
        retry of the job queued has not ended; {"not_found"}; {"refused", reason}.
Holds   the place is computed anew: the same. The class too: its number may be another's since the job ended.
Cost    O(log n).
--]]
local FORGOTTEN = { 'crashes', 'crashed_on', 'lost', 'incomplete', 'alone', 'cancel', 'ended', 'suspect', 'hb', 'due',
    'shards', 'merge', 'started', 'worker', 'status', 'progress', 'total', 'reason', 'last' }

-- What a retry before this one queued, where the same answer is due.
local function repeated(j, request)
    local gen, before = (call('HGET', P .. 'job:' .. j.id, 'retried') or ''):match('^(%d+) (.*)$')
    if not gen then
        return nil
    end
    local id = tonumber(gen) == j.gen and j.id or j.base .. '~' .. gen
    if (request ~= '' and request == before) or OPEN[call('HGET', P .. 'job:' .. id, 'state')] then
        return id
    end
    return nil
end

--[[
The class that a submit of the same message would get; nil: there are too many. The number that a job ended with goes to others
once nothing waits there. Of a message that cannot be read the number stays: whoever claims the job says what is wrong.
--]]
local function class_anew(j, record)
    local read, message = pcall(cmsgpack.unpack, record)
    local needs = read and type(message) == 'table' and message.needs
    local told, text = pcall(V.needs_text, needs or {})
    if not read or not told then
        return j.class
    end
    return (F.class_make(j.suite, needs and text or '*'))
end

local function again(j)
    call('ZREM', P .. 'ended:' .. j.state, j.id)
    J.count(j, j.state, -1)
    call('HDEL', P .. 'job:' .. j.id, unpack(FORGOTTEN))
    j.state, j.merge, j.shards, j.attempts = '', nil, nil, 0
    call('ZADD', J.open_key(j), j.place, j.tag)
    J.queue(j, { 'class', j.class, 'attempts', 0, 'token', '', 'retries', text_of(J.retries(j) + 1) })
    return j.id
end

local function next_generation(j, record)
    local gen = j.gen + 1
    local fresh = { run = j.run, step = j.step, variant = j.variant, suite = j.suite, priority = j.priority,
        fingerprint = j.fingerprint or '', keep = j.keep or '0', flow = j.flow, base = j.base }
    local id = j.base .. '~' .. gen
    local new, fields = V.job_new(fresh, id, gen, j.class, j.place)
    call('HSET', P .. 'gens:' .. j.flow, j.step, gen)
    call('HSET', P .. 'flow:' .. j.flow, 'gens', 1)
    Q.bump('submitted', 1)
    call('SET', P .. 'msg:' .. id, record)
    call('ZADD', J.open_key(new), new.place, new.tag)
    J.place(new, 'queued', nil, fields)
    return id, new
end

verb('retry', 'drain', function(args)
    local request = args[2] or ''
    if #args ~= 2 then
        args_exactly(args, 1, 'id, then a request or nothing')
    elseif request ~= '' then
        label_arg(args, 2, 40, 'request')
    end
    local key = J.parse(args[1])
    if not key or key.shard then
        refuse('\'' .. args[1]:sub(1, 60) .. '\' is no job id')
    end
    local j = J.load(args[1])
    if not j or not J.sane(j) then
        return { 'not_found' }
    end
    local before = repeated(j, request)
    if before then
        return { 'queued', before }
    end
    if j.state ~= 'dead' and j.state ~= 'skipped' and j.state ~= 'cancelled' then
        return { 'refused', 'it is ' .. j.state }
    end
    local latest = tonumber(call('HGET', P .. 'gens:' .. j.flow, j.step)) or 1
    if j.gen ~= latest then
        return { 'refused', 'it was followed by ' .. j.base .. '~' .. text_of(latest) }
    end
    local record = call('GET', P .. 'msg:' .. j.id)
    if not record then
        return { 'refused', 'its message is gone' }
    end
    local class = class_anew(j, record)
    if not class then
        return { 'refused', V.CLASSES_FULL }
    end
    j.class = class
    local id
    local further = (tonumber(j.tasks) or 0) > 0
    call('HSET', P .. 'job:' .. j.id, 'retried', text_of(j.gen + (further and 1 or 0)) .. ' ' .. request)
    if further then
        id, j = next_generation(j, record)
    else
        id = again(j)
    end
    if call('HGET', P .. 'flow:' .. j.flow, 'policy') == 'backfill' then
        F.backfill.note(j.flow, j.class, j.priority, tonumber(j.place))
    end
    return { 'queued', id }
end)
