--[[
ticket_cancel: who holds the ticket wants its job no more. The job itself ends when no other open ticket names it.

KEYS[1] prefix  "evalq:{queue}:"
ARGV[1] ticket
ARGV[2] running "1": also a job that a worker has begun
ARGV[3] reason  "" or one sentence

Returns "cancelled"; "running": left alone; {"ended", state}: it had; or "not_found".
Cost    O(log n); at most 1000 open tickets are looked at for others of the same job.
--]]
local function ticket_end(id, ticket, reason)
    for _, other in ipairs(call('ZRANGE', P .. 'ticketopen', 0, 10 * SLICE - 1)) do
        local v = other ~= ticket and call('HMGET', P .. 'ticket:' .. other, 'job', 'other', 'cancelled') or {}
        if (v[1] == id or v[2] == id) and not v[3] then
            return
        end
    end
    local j = J.load(id)
    if j and J.sane(j) and OPEN[j.state] then
        J.cancel(j, 'cancelled', reason)
    end
end

verb('ticket_cancel', 'drain', function(args)
    args_exactly(args, 3, 'ticket running reason')
    local id = label_arg(args, 1, 64, 'ticket')
    local v = call('HMGET', P .. 'ticket:' .. id, 'job', 'other', 'cancelled')
    if not v[1] then
        return 'not_found'
    end
    local state, mine, other = V.ticket_state({ job = v[1], other = v[2], cancelled = v[3] })
    if not OPEN[state] then
        return { 'ended', state }
    end
    if args[2] ~= '1' and (state == 'running' or mine == 'running' or other == 'running') then
        return 'running'
    end
    local reason = args[3] ~= '' and short_text(args[3]) or 'cancelled by hand'
    call('HSET', P .. 'ticket:' .. id, 'cancelled', NOW_TEXT)
    ticket_end(v[1], id, reason)
    if v[2] and v[2] ~= '' then
        ticket_end(v[2], id, reason)
    end
    V.ticket_look(id)
    return 'cancelled'
end)
