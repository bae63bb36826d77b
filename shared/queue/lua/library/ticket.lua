--[[
Tickets: what somebody outside calls a job by, with the request that it came of. A ticket names one job, or two whose ends
it waits for. Open ones stand in `ticketopen`; whoever sees that its jobs have ended moves it to `ticketended`.
--]]

-- Fields of a job's hash; none where its key holds something else.
function Ticket.job_fields(id, ...)
    local ok, fields = pcall(call, 'HMGET', PREFIX .. 'job:' .. id, ...)
    return ok and fields or {}, ok
end

--[[
The state of a job's record, else of its ledger entry; "gone" when neither knows it. A job that was set aside runs no more: to
who waits for it it is dead, and its reason says why.
--]]
function Ticket.job_state(id)
    local key = Job.parse(id)
    if not key then
        return 'gone'
    end
    local values, sane = Ticket.job_fields(id, 'state')
    local state = values[1]
    if not sane or state and not (OPEN[state] or ENDED[state]) then
        return 'dead'
    end
    if not state then
        local entry = call('HGET', PREFIX .. 'ledger:' .. key.flow, key.step)
        local gen, ended = (entry or ''):match('^(%d+) %w* (%a+)$')
        state = tonumber(gen) == key.gen and ended or 'gone'
    end
    return state
end

-- The state that a ticket shows, and those of its jobs.
function Ticket.state(ticket)
    local state = Ticket.job_state(ticket.job or '')
    local other = ticket.other and ticket.other ~= '' and Ticket.job_state(ticket.other) or ''
    if ticket.cancelled then
        return 'cancelled', state, other
    end
    if state == 'done' and OPEN[other] then
        return 'running', state, other
    end
    return state, state, other
end

-- Moves a ticket whose jobs have ended; returns its state.
function Ticket.check(id)
    local values = call('HMGET', PREFIX .. 'ticket:' .. id, 'job', 'other', 'cancelled')
    local state = values[1] and Ticket.state({ job = values[1], other = values[2], cancelled = values[3] }) or 'gone'
    if not OPEN[state] then
        call('ZREM', PREFIX .. 'ticketopen', id)
        call('ZADD', PREFIX .. 'ticketended', NOW, id)
        Queue.bump('tickets_' .. state, 1)
    end
    return state
end

-- Tickets that ended long ago go; open ones are looked at by chance.
function Ticket.retain()
    for _, id in ipairs(call('ZRANDMEMBER', PREFIX .. 'ticketopen', FEW)) do
        Ticket.check(id)
    end
    local old = call('ZRANGEBYSCORE', PREFIX .. 'ticketended', '-inf', text_of(NOW - Queue.meta().retain_dead_ms), 'LIMIT', 0, FEW)
    for _, id in ipairs(old) do
        call('UNLINK', PREFIX .. 'ticket:' .. id)
        call('ZREM', PREFIX .. 'ticketended', id)
    end
end

--[[
How many queued tickets stand before this one: counted among the oldest hundred, beyond them by rank. at: the place where
an open one stands, or nil: behind all.
--]]
function Ticket.position(at)
    local rank = at or call('ZCARD', PREFIX .. 'ticketopen')
    local position = math.max(rank - SLICE, 0)
    for _, id in ipairs(call('ZRANGE', PREFIX .. 'ticketopen', 0, math.min(rank, SLICE) - 1)) do
        local values = rank > 0 and call('HMGET', PREFIX .. 'ticket:' .. id, 'job', 'other', 'cancelled') or {}
        local state = values[1] and Ticket.state({ job = values[1], other = values[2], cancelled = values[3] })
        if state == 'queued' or state == 'delayed' then
            position = position + 1
        end
    end
    return text_of(position)
end
