--[[
Ticket: a name that an outside client uses for a job. A ticket keeps the client's request and names one job, or two jobs that
it waits for. Open tickets are in `ticketopen`. A call that finds that the jobs have ended moves the ticket to `ticketended`.
--]]

-- Reads fields of a job's hash. If the key has another type, they are empty and the second value is false.
function Ticket.job_fields(id, ...)
    local ok, fields = pcall(call, 'HMGET', PREFIX .. 'job:' .. id, ...)
    return ok and fields or {}, ok
end

--[[
The state of a job, from its record or from its flow's ledger. "gone": neither has it. A job that was set aside is "dead" here,
and its reason says why.
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

-- The state of a ticket and of its two jobs.
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

-- Moves the ticket to `ticketended` if its jobs have ended. Returns its state.
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

-- Removes tickets that ended long ago, and checks a few random open ones.
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
How many queued tickets come before this one: counted among the oldest hundred, by rank after them. at: the rank of an open
ticket, or nil for a place behind all.
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
