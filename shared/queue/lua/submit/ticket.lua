--[[
ticket: all that is known of one.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] ticket

Returns nil, or {state, at, position, job, other, job's state, other's state, job's reason, other's reason, started, ended,
        detail, request, n, n records of the job's results, then those of the other's}. state: of a job, "cancelled" when
        the ticket was, "gone" when its job's record is; position "": it does not wait; times in unix ms, "": not yet;
        ended: of the later of the two.
Cost    O(results); at most 100 looks at older tickets.
--]]
verb('ticket', 'ro', function(args)
    args_exactly(args, 1, 'ticket')
    local id = label_arg(args, 1, 64, 'ticket')
    local v = call('HMGET', P .. 'ticket:' .. id, 'job', 'other', 'cancelled', 'at', 'request')
    if not v[1] then
        return false
    end
    local t = { job = v[1], other = v[2] or '', cancelled = v[3] }
    local state, mine, other = V.ticket_state(t)
    local job = V.ticket_fields(t.job, 'reason', 'started', 'ended')
    local beside = t.other ~= '' and V.ticket_fields(t.other, 'reason', 'ended') or { '', '' }
    local waits = state == 'queued' or state == 'delayed'
    local rank = waits and call('ZRANK', P .. 'ticketopen', id) or nil
    local ended = not OPEN[state] and math.max(tonumber(job[3] or '') or 0, tonumber(beside[2] or '') or 0,
        tonumber(t.cancelled or '') or 0) or 0
    local mine_results = call('HVALS', P .. 'res:' .. t.job)
    local reply = { state, v[4] or '', waits and V.ticket_position(rank) or '', t.job, t.other, mine, other, job[1] or '',
        beside[1] or '', job[2] or '', ended > 0 and text_of(ended) or '', call('GET', P .. 'log:' .. t.job) or '',
        v[5] or '', text_of(#mine_results) }
    for _, record in ipairs(mine_results) do
        reply[#reply + 1] = record
    end
    for _, record in ipairs(t.other ~= '' and call('HVALS', P .. 'res:' .. t.other) or {}) do
        reply[#reply + 1] = record
    end
    return reply
end)
