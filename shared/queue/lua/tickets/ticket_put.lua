--[[
ticket_put: stores a client's name for a job, with the client's request.

KEYS[1] prefix  "evalq:{queue}:"
ARGV[1] ticket  1 to 64 printable bytes, new for each request; the same again changes nothing
ARGV[2] job     id, as submit answered
ARGV[3] other   "" or a second job, whose end the ticket waits for too
ARGV[4] request what was asked for, at most 65536 bytes, kept as it stands

Returns {"ok", position}: how many queued tickets stand before it.
Cost    O(log n); at most 100 looks at older tickets.
--]]
verb('ticket_put', 'grow', function(args)
    args_exactly(args, 4, 'ticket job other request')
    local id = label_arg(args, 1, 64, 'ticket')
    if not Job.parse(args[2]) or (args[3] ~= '' and not Job.parse(args[3])) then
        refuse('\'' .. args[2]:sub(1, 60) .. '\' and \'' .. args[3]:sub(1, 60) .. '\' must be ids of jobs')
    end
    if #args[4] > 65536 then
        refuse('a request of ' .. #args[4] .. ' bytes, allowed 65536')
    end
    local key = PREFIX .. 'ticket:' .. id
    if call('EXISTS', key) == 0 then
        local position = Ticket.position(nil)
        call('HSET', key, 'job', args[2], 'other', args[3], 'at', NOW_TEXT, 'request', args[4])
        call('ZADD', PREFIX .. 'ticketopen', NOW, id)
        Queue.bump('tickets', 1)
        return { 'ok', position }
    end
    return { 'ok', Ticket.position(call('ZRANK', PREFIX .. 'ticketopen', id) or nil) }
end)
