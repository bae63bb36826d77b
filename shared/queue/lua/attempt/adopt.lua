--[[
adopt: after a new epoch, put a running job back that Redis forgot.

KEYS[1] prefix   "evalq:{queue}:"
ARGV[1] worker   id of the process that runs it
ARGV[2] lease_ms 1 to 3600000
ARGV[3] id       as it was claimed
ARGV[4] token    as it was claimed
ARGV[5] attempt  1 or more
ARGV[6..17]      run session step variant suite policy band keep fingerprint needs_given needs record, as submit's

Returns "ok", or "stale": another attempt holds it, it has ended, or it is a shard, whose parent starts anew.
Holds   a job submitted again meanwhile and still waiting is the same job: it is running, with this token.
Cost    O(log n).
--]]
local function adopted_new(s, key, flow)
    local class = F.class_make(s.suite, s.class_needs)
    if not class then
        return nil
    end
    local place, ord = V.place_of(flow, s.session, s.step_number)
    V.flow_note(s, flow, place, ord)
    Q.bump('submitted', 1)
    local j, fields = V.job_new(s, key.base .. (key.gen > 1 and '~' .. key.gen or ''), key.gen, class, text_of(place))
    if key.gen > 1 then
        call('HSET', P .. 'gens:' .. s.flow, s.step, key.gen)
        call('HSET', P .. 'flow:' .. s.flow, 'gens', 1)
    end
    call('SET', P .. 'msg:' .. j.id, s.record)
    call('ZADD', J.open_key(j), j.place, j.tag)
    return j, fields
end

local function may_adopt(j, s, token)
    if not j then
        return true
    end
    local same = not j.fingerprint or s.fingerprint == '' or j.fingerprint == s.fingerprint
    return J.sane(j) and (j.token == token or ((j.state == 'queued' or j.state == 'delayed') and same and
        (not j.token or j.token == '') and not j.shards))
end

verb('adopt', 'drain', function(args)
    args_exactly(args, 17, 'worker lease_ms id token attempt, then run to record without delay')
    local worker = label_arg(args, 1, 64, 'worker')
    local lease = integer_arg(args, 2, 1, LEASE_MS_MAX, 'lease_ms')
    local key = J.parse(args[3])
    local counter, nonce = (args[4] or ''):match('^(%d+)%.(%x+)$')
    if not key or not counter or #counter > 15 or #nonce > 40 then
        refuse('id and token must be those of a claim')
    end
    local attempt = integer_arg(args, 5, 1, 1000000, 'attempt')
    local s, wrong = V.submit_read({ args[6], args[7], args[8], args[9], args[10], args[11], args[12], args[13],
        args[14], args[15], args[16], '0', args[17] }, 1)
    if not s then
        refuse(wrong)
    end
    if s.base ~= key.base then
        refuse('the message is that of \'' .. s.base .. '\'')
    end
    local j = not key.shard and J.load(args[3])
    if key.shard or not may_adopt(j, s, args[4]) then
        return 'stale'
    end
    local fields = {}
    if j and j.state == 'running' then
        return 'ok'
    end
    if not j then
        j, fields = adopted_new(s, key, V.flow_load(s.flow))
        if not j then
            refuse('no class is free')
        end
    end
    for _, value in ipairs({ 'token', args[4], 'attempts', attempt, 'worker', worker, 'started', NOW, 'lease', lease,
        'hb', 0, 'suspect', '' }) do
        fields[#fields + 1] = value
    end
    J.place(j, 'running', NOW + lease, fields)
    Q.meta_set('token', math.max(Q.meta().token, tonumber(counter)))
    Q.bump('adopted', 1)
    return 'ok'
end)
