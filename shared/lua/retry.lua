--[[
retry: a job that ended without a result is wanted again, by hand.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] id     job that is dead, skipped or cancelled

Returns {"queued", id}: id is a new generation when something had been published; {"not_found"}; {"refused", reason}.
Holds   the place is computed anew: the same.
Cost    O(log n).
--]]
local FORGOTTEN = { 'crashes', 'crashed_on', 'lost', 'incomplete', 'alone', 'cancel', 'ended', 'suspect', 'hb', 'due',
    'shards', 'merge', 'started', 'worker', 'status', 'progress', 'total', 'reason', 'last' }

local function again(j)
    call('ZREM', P .. 'ended:' .. j.state, j.id)
    J.count(j, j.state, -1)
    call('HDEL', P .. 'job:' .. j.id, unpack(FORGOTTEN))
    j.state, j.merge, j.shards, j.attempts = '', nil, nil, 0
    call('ZADD', J.open_key(j), j.place, j.tag)
    J.queue(j, { 'attempts', 0, 'token', '' })
    return j.id
end

local function next_generation(j)
    local record = call('GET', P .. 'msg:' .. j.id)
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
    args_exactly(args, 1, 'id')
    local key = J.parse(args[1])
    if not key or key.shard then
        refuse('\'' .. args[1]:sub(1, 60) .. '\' is no job id')
    end
    local j = J.load(args[1])
    if not j or not J.sane(j) then
        return { 'not_found' }
    end
    if j.state ~= 'dead' and j.state ~= 'skipped' and j.state ~= 'cancelled' then
        return { 'refused', 'it is ' .. j.state }
    end
    local latest = tonumber(call('HGET', P .. 'gens:' .. j.flow, j.step)) or 1
    if j.gen ~= latest then
        return { 'refused', 'it was followed by ' .. j.base .. '~' .. text_of(latest) }
    end
    if call('EXISTS', P .. 'msg:' .. j.id) == 0 then
        return { 'refused', 'its message is gone' }
    end
    local id
    if (tonumber(j.tasks) or 0) > 0 then
        id, j = next_generation(j)
    else
        id = again(j)
    end
    if call('HGET', P .. 'flow:' .. j.flow, 'policy') == 'backfill' then
        F.backfill.note(j.flow, j.class, j.priority, tonumber(j.place))
    end
    return { 'queued', id }
end)
