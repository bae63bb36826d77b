--[[
What time changes, done a little at a time by every heartbeat and claim: looks at leases, delayed jobs that fall due, work
that was cut into slices, retention. There is no reaper process. One item that cannot be handled is set aside.
--]]

local function per_item(ids, place, handle)
    for _, id in ipairs(ids) do
        local ok, problem = pcall(handle, id)
        if not ok and not Q.keys.blameless(problem) then
            J.set_aside(id, error_text(problem, id), nil, nil)
            pcall(call, 'ZREM', P .. place, id)
        end
    end
end

-- The holder was not heard of: back to the queue, its token still good, or dead when its attempts are used up.
function L.lost(j)
    local lost = (tonumber(call('HINCRBY', P .. 'job:' .. j.id, 'lost', 1)) or 1)
    Q.bump('reclaimed', 1)
    local reason = 'lost: no heartbeat from ' .. (j.worker or '?')
    if j.cancel and j.cancel ~= '' then
        J.finish(j, 'cancelled', j.cancel)
    elseif j.attempts >= Q.meta().attempts_max then
        J.finish(j, 'dead', reason)
    elseif lost == 1 then
        J.queue(j, { 'reason', short_text(reason), 'suspect', '' })
    else
        local due = NOW + J.backoff(j.id, lost - 1, 1000)
        J.place(j, 'delayed', due, { 'reason', short_text(reason), 'suspect', '', 'due', due })
    end
end

function L.look(id)
    local j = J.load(id)
    if not j or j.state ~= 'running' or not J.sane(j) then
        call('ZREM', P .. 'leases', id)
        if j and J.sane(j) then
            J.active(j, -1)
        end
        Q.bad(id, 'a lease without a running job')
        return
    end
    local lease = tonumber(j.lease) or Q.meta().lease_ms
    local beats = j.hb or '0'
    if not j.suspect or j.suspect == '' then
        call('HSET', P .. 'job:' .. id, 'suspect', beats)
        call('ZADD', P .. 'leases', NOW + math.floor(lease * 2 / 5), id) -- Two heartbeats: a lease is five.
        Q.bump('suspected', 1)
    elseif j.suspect ~= beats then
        call('HSET', P .. 'job:' .. id, 'suspect', '')
        call('ZADD', P .. 'leases', NOW + lease, id)
    else
        L.lost(j)
    end
end

function L.promote(id)
    local j = J.load(id)
    if not j or j.state ~= 'delayed' or not J.sane(j) then
        call('ZREM', P .. 'delayed', id)
        Q.bad(id, 'a due time without a delayed job')
        return
    end
    local flow = call('HMGET', P .. 'flow:' .. j.flow, 'policy', 'top')
    local top = tonumber(flow[2])
    if flow[1] == 'latest' and top and tonumber(j.place) < top and j.keep ~= '1' and j.merge ~= '1' and not j.shard then
        J.finish(j, 'skipped', 'superseded by step ' .. text_of(top % SPAN))
        return
    end
    J.queue(j, { 'due', '' })
    if flow[1] == 'backfill' and not j.shard and j.merge ~= '1' then
        F.backfill.note(j.flow, j.class, j.priority, tonumber(j.place))
    end
end

--[[
A clock that was set back leaves scores far ahead: they are pulled to the longest wait that job can have from now on. The
farthest are looked at, and a few by chance, so that long leases do not hide short ones.
--]]
local function pull_back(set, usual_ms, legal)
    local far = call('ZRANGE', P .. set, '+inf', '(' .. text_of(NOW + usual_ms), 'BYSCORE', 'REV', 'LIMIT', 0, FEW)
    for _, id in ipairs(#far == FEW and call('ZRANDMEMBER', P .. set, FEW / 2) or {}) do
        far[#far + 1] = id
    end
    for _, id in ipairs(far) do
        local ok, wait = pcall(legal, id)
        call('ZADD', P .. set, 'LT', 'XX', NOW + (ok and wait or usual_ms), id)
    end
end

local function lease_legal(id)
    local lease = tonumber(call('HGET', P .. 'job:' .. id, 'lease')) or LEASE_MS_MAX
    return math.min(math.max(lease, 1), LEASE_MS_MAX)
end

-- One that was begun waits to be tried again, as long as `fail` has said; one that was not, as long as its submit said.
local function delay_legal(id)
    local job = call('HMGET', P .. 'job:' .. id, 'started', 'last', 'due', 'submitted')
    if job[1] then
        return math.min(tonumber((job[2] or ''):match(' delayed (%d+)$')) or RETRY_MS_MAX, RETRY_MS_MAX)
    end
    local due, submitted = tonumber(job[3]), tonumber(job[4])
    return math.min(due and submitted and math.max(due - submitted, 0) or DELAY_MS_MAX, DELAY_MS_MAX)
end

-- When the next delayed job is due, or false.
function L.due()
    local rows = Q.keys.tried(call, 'ZRANGE', P .. 'delayed', '0', '0', 'WITHSCORES')
    return rows and tonumber(rows[2]) or false
end

-- Returns L.due() as it is afterwards; nil where that was not looked at.
function L.looks_and_promotions()
    per_item(Q.mended('leases', call, 'ZRANGEBYSCORE', P .. 'leases', '-inf', NOW_TEXT, 'LIMIT', '0', text_of(FEW)), 'leases',
        L.look)
    local due = L.due()
    if due and due <= NOW then
        per_item(call('ZRANGEBYSCORE', P .. 'delayed', '-inf', NOW_TEXT, 'LIMIT', '0', text_of(FEW)), 'delayed', L.promote)
        return nil
    end
    return due
end

-- The record of an ended job goes; step, generation, fingerprint and end stay in its flow's ledger. One that was set aside
-- may be no job at all; one that goes on since (a worker adopted it) stays.
function L.record_remove(id)
    local sane, j = pcall(J.load, id)
    if sane and j and OPEN[j.state] then
        return
    elseif sane and j and ENDED[j.state] then
        local latest = tonumber(call('HGET', P .. 'gens:' .. j.flow, j.step)) or 1
        if j.gen == latest then
            call('HSET', P .. 'ledger:' .. j.flow, j.step, j.gen .. ' ' .. (j.fingerprint or '') .. ' ' .. j.state)
            call('HSET', P .. 'flow:' .. j.flow, 'ledger', 1)
        end
    end
    call('UNLINK', P .. 'job:' .. id, P .. 'msg:' .. id, P .. 'log:' .. id, P .. 'res:' .. id, P .. 'part:' .. id)
end

-- Rows of a run's index that are looked at for each record removed: more than a job of a few tasks has.
local INDEX_ROWS = 16

-- Removes ended jobs past their age or number, and those set aside, at most budget of them; returns how many.
function L.retain(budget)
    local meta = Q.meta()
    local removed, kept = 0, 0
    for state in pairs(ENDED) do
        kept = kept + Q.mended('ended:' .. state, call, 'ZCARD', P .. 'ended:' .. state)
    end
    for _, state in ipairs({ 'done', 'skipped', 'cancelled', 'dead', 'bad' }) do
        local key, wanted = P .. 'ended:' .. state, state == 'dead' or state == 'bad'
        local age = wanted and meta.retain_dead_ms or meta.retain_ms
        local over = wanted and 0 or math.max(kept - meta.retain_count, 0)
        local ids = Q.mended('ended:' .. state, call, 'ZRANGE', key, 0, budget - removed - 1, 'WITHSCORES')
        for i = 1, #ids, 2 do
            if removed >= budget or (tonumber(ids[i + 1]) > NOW - age and over <= 0) then
                break
            end
            pcall(L.record_remove, ids[i])
            call('ZREM', key, ids[i])
            Q.keys.tried(R.index_trim, ids[i]:match('^[^/]*'), INDEX_ROWS)
            removed, kept, over = removed + 1, kept - 1, over - 1
        end
        if removed >= budget then
            break
        end
    end
    return removed
end

-- Everything a flow left, 90 days after its last submit, or when its run is forgotten. It must have no open job.
function L.flow_forget(flow)
    local run, variant_suite = flow:match('^([^/]+)/(.+)$')
    local suite = variant_suite:match('([^/]+)$')
    for _, class in ipairs(F.suite_classes(suite)) do
        for band = 0, 3 do
            call('UNLINK', P .. 'gaps:' .. flow .. ':' .. class .. ':' .. band)
        end
    end
    call('UNLINK', P .. 'flow:' .. flow, P .. 'ledger:' .. flow, P .. 'gens:' .. flow, P .. 'taken:' .. flow)
    call('ZREM', P .. 'flows', flow)
    call('ZREM', P .. 'supersede', flow)
    call('SREM', P .. 'runflows:' .. run, flow)
    if call('SCARD', P .. 'runflows:' .. run) == 0 then
        RUNS[run], RUN_BUMPS[run] = nil, nil
        call('ZREM', P .. 'runs', run)
        call('SREM', P .. 'unpark', run)
        call('UNLINK', P .. 'run:' .. run, P .. 'index:' .. run, P .. 'best:' .. run, P .. 'parked:' .. run)
    end
end

local function flows_expire(budget)
    local old = call('ZRANGEBYSCORE', P .. 'flows', '-inf', text_of(NOW - Q.meta().flow_retain_ms), 'LIMIT', 0, budget)
    for _, flow in ipairs(old) do
        if not J.id_of(flow, '0') then
            call('ZREM', P .. 'flows', flow)
        elseif call('EXISTS', P .. 'open:' .. flow, P .. 'openkeep:' .. flow) > 0 then
            call('ZADD', P .. 'flows', NOW, flow)
        else
            L.flow_forget(flow)
        end
    end
    return #old
end

-- Retention of all kinds; also gc's body. A key of another type keeps no other kind from its turn.
function L.retention(budget)
    local removed = L.retain(budget)
    Q.keys.tried(flows_expire, math.min(budget, FEW))
    -- Rows that became free behind one that was kept longer, or under an earlier build.
    local run = Q.keys.tried(call, 'ZRANDMEMBER', P .. 'runs')
    local trimmed = run and Q.keys.tried(R.index_trim, run, SLICE) or 0
    Q.mended('workers', call, 'ZREMRANGEBYSCORE', P .. 'workers', '-inf', text_of(NOW - DAY_MS))
    Q.keys.tried(V.tickets_retain)
    R.cap()
    return removed > 0 and removed or trimmed
end

local function supersede_on()
    local flow = call('ZRANGE', P .. 'supersede', 0, 0, 'WITHSCORES')
    if flow[1] then
        F.supersede(flow[1], tonumber(flow[2]))
    end
end

local function unpark_on()
    local run = call('SRANDMEMBER', P .. 'unpark')
    if run then
        F.unpark(run)
    end
end

-- Once per heartbeat, and every so often per claim.
function L.slow_work()
    pull_back('leases', Q.meta().lease_ms, lease_legal)
    Q.keys.tried(pull_back, 'delayed', FAR_MS, delay_legal)
    Q.keys.tried(supersede_on)
    Q.keys.tried(unpark_on)
    L.retention(4)
end
