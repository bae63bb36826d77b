--[[
tickets: lists the open tickets, oldest first, and counts those that ended.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] count  1 to 1000: how many at most

Returns {open, done, dead, {ticket, state}...}: open counts all, done and dead those that ended so, ever. Those found ended
        are taken off.
Cost    O(count).
--]]
verb('tickets', 'drain', function(args)
    args_exactly(args, 1, 'count')
    local count = integer_arg(args, 1, 1, 1000, 'count')
    local listed, ended = {}, { done = 0, dead = 0 }
    for _, id in ipairs(call('ZRANGE', PREFIX .. 'ticketopen', 0, count - 1)) do
        local state = Ticket.check(id)
        if OPEN[state] then
            listed[#listed + 1] = id
            listed[#listed + 1] = state
        elseif ended[state] then
            ended[state] = ended[state] + 1 -- Counted in this call: written at its end.
        end
    end
    local n = call('HMGET', PREFIX .. 'n', 'tickets_done', 'tickets_dead')
    local reply = { text_of(call('ZCARD', PREFIX .. 'ticketopen')), text_of((tonumber(n[1]) or 0) + ended.done),
        text_of((tonumber(n[2]) or 0) + ended.dead) }
    for _, word in ipairs(listed) do
        reply[#reply + 1] = word
    end
    return reply
end)
