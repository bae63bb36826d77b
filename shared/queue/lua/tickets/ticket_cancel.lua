--[[
ticket_cancel: cancels a ticket. Its job ends if no other open ticket names it.

KEYS[1] prefix  "evalq:{queue}:"
ARGV[1] ticket
ARGV[2] running "1": also a job that a worker has begun
ARGV[3] reason  "" or one sentence

Returns "cancelled"; "running": left alone; {"ended", state}: it had; or "not_found".
Cost    O(log n); at most 1000 open tickets are looked at for others of the same job.
--]]
local function ticket_end(id, ticket, reason)
    for _, other in ipairs(call('ZRANGE', PREFIX .. 'ticketopen', 0, 10 * SLICE - 1)) do
        local values = other ~= ticket and call('HMGET', PREFIX .. 'ticket:' .. other, 'job', 'other', 'cancelled') or {}
        if (values[1] == id or values[2] == id) and not values[3] then
            return
        end
    end
    local job = Job.load(id)
    if job and Job.is_sane(job) and OPEN[job.state] then
        Job.cancel(job, 'cancelled', reason)
    end
end

verb('ticket_cancel', 'drain', function(args)
    args_exactly(args, 3, 'ticket running reason')
    local id = label_arg(args, 1, 64, 'ticket')
    local values = call('HMGET', PREFIX .. 'ticket:' .. id, 'job', 'other', 'cancelled')
    if not values[1] then
        return 'not_found'
    end
    local state, mine, other = Ticket.state({ job = values[1], other = values[2], cancelled = values[3] })
    if not OPEN[state] then
        return { 'ended', state }
    end
    if args[2] ~= '1' and (state == 'running' or mine == 'running' or other == 'running') then
        return 'running'
    end
    local reason = args[3] ~= '' and short_text(args[3]) or 'cancelled by hand'
    call('HSET', PREFIX .. 'ticket:' .. id, 'cancelled', NOW_TEXT)
    ticket_end(values[1], id, reason)
    if values[2] and values[2] ~= '' then
        ticket_end(values[2], id, reason)
    end
    Ticket.check(id)
    return 'cancelled'
end)
