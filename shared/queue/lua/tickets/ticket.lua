--[[
ticket: returns everything about one ticket.

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
    local values = call('HMGET', PREFIX .. 'ticket:' .. id, 'job', 'other', 'cancelled', 'at', 'request')
    if not values[1] then
        return false
    end
    local ticket = { job = values[1], other = values[2] or '', cancelled = values[3] }
    local state, mine, other = Ticket.state(ticket)
    local job = Ticket.job_fields(ticket.job, 'reason', 'started', 'ended')
    local beside = ticket.other ~= '' and Ticket.job_fields(ticket.other, 'reason', 'ended') or { '', '' }
    local waits = state == 'queued' or state == 'delayed'
    local rank = waits and call('ZRANK', PREFIX .. 'ticketopen', id) or nil
    local ended = not OPEN[state] and math.max(tonumber(job[3] or '') or 0, tonumber(beside[2] or '') or 0,
        tonumber(ticket.cancelled or '') or 0) or 0
    local mine_results = call('HVALS', PREFIX .. 'res:' .. ticket.job)
    local reply = { state, values[4] or '', waits and Ticket.position(rank) or '', ticket.job, ticket.other, mine, other,
        job[1] or '',
        beside[1] or '', job[2] or '', ended > 0 and text_of(ended) or '', call('GET', PREFIX .. 'log:' .. ticket.job) or '',
        values[5] or '', text_of(#mine_results) }
    for _, record in ipairs(mine_results) do
        reply[#reply + 1] = record
    end
    for _, record in ipairs(ticket.other ~= '' and call('HVALS', PREFIX .. 'res:' .. ticket.other) or {}) do
        reply[#reply + 1] = record
    end
    return reply
end)
