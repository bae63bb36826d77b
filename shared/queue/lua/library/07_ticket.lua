--[[
Tickets: what somebody outside calls a job by, with the request that it came of. A ticket names one job, or two whose ends
it waits for. Open ones stand in `ticketopen`; whoever sees that its jobs have ended moves it to `ticketended`.
--]]

-- Fields of a job's hash; none where its key holds something else.
function V.ticket_fields(id, ...)
    local ok, fields = pcall(call, 'HMGET', P .. 'job:' .. id, ...)
    return ok and fields or {}, ok
end

--[[
The state of a job's record, else of its ledger entry; "gone" when neither knows it. A job that was set aside runs no more: to
who waits for it it is dead, and its reason says why.
--]]
function V.ticket_job(id)
    local key = J.parse(id)
    if not key then
        return 'gone'
    end
    local v, sane = V.ticket_fields(id, 'state')
    local state = v[1]
    if not sane or state and not (OPEN[state] or ENDED[state]) then
        return 'dead'
    end
    if not state then
        local entry = call('HGET', P .. 'ledger:' .. key.flow, key.step)
        local gen, ended = (entry or ''):match('^(%d+) %w* (%a+)$')
        state = tonumber(gen) == key.gen and ended or 'gone'
    end
    return state
end

-- The state that a ticket shows, and those of its jobs.
function V.ticket_state(t)
    local state = V.ticket_job(t.job or '')
    local other = t.other and t.other ~= '' and V.ticket_job(t.other) or ''
    if t.cancelled then
        return 'cancelled', state, other
    end
    if state == 'done' and OPEN[other] then
        return 'running', state, other
    end
    return state, state, other
end

-- Moves a ticket whose jobs have ended; returns its state.
function V.ticket_look(id)
    local v = call('HMGET', P .. 'ticket:' .. id, 'job', 'other', 'cancelled')
    local state = v[1] and V.ticket_state({ job = v[1], other = v[2], cancelled = v[3] }) or 'gone'
    if not OPEN[state] then
        call('ZREM', P .. 'ticketopen', id)
        call('ZADD', P .. 'ticketended', NOW, id)
        Q.bump('tickets_' .. state, 1)
    end
    return state
end

-- Tickets that ended long ago go; open ones are looked at by chance.
function V.tickets_retain()
    for _, id in ipairs(call('ZRANDMEMBER', P .. 'ticketopen', FEW)) do
        V.ticket_look(id)
    end
    local old = call('ZRANGEBYSCORE', P .. 'ticketended', '-inf', text_of(NOW - Q.meta().retain_dead_ms), 'LIMIT', 0, FEW)
    for _, id in ipairs(old) do
        call('UNLINK', P .. 'ticket:' .. id)
        call('ZREM', P .. 'ticketended', id)
    end
end

--[[
How many queued tickets stand before this one: counted among the oldest hundred, beyond them by rank. at: the place where
an open one stands, or nil: behind all.
--]]
function V.ticket_position(at)
    local rank = at or call('ZCARD', P .. 'ticketopen')
    local position = math.max(rank - SLICE, 0)
    for _, id in ipairs(call('ZRANGE', P .. 'ticketopen', 0, math.min(rank, SLICE) - 1)) do
        local v = rank > 0 and call('HMGET', P .. 'ticket:' .. id, 'job', 'other', 'cancelled') or {}
        local state = v[1] and V.ticket_state({ job = v[1], other = v[2], cancelled = v[3] })
        if state == 'queued' or state == 'delayed' then
            position = position + 1
        end
    end
    return text_of(position)
end
