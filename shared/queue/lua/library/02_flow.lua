--[[
Flows and fairness. A flow (run, variant, suite) with waiting jobs stands in `ready:CLASS:BAND` under its virtual start,
or, while its run is paused or at its cap, in `parked:RUN`. settle() decides which; every state change ends with it.
--]]

local VT_FIELD = { [0] = 'vt:0', 'vt:1', 'vt:2', 'vt:3', ['0'] = 'vt:0', ['1'] = 'vt:1', ['2'] = 'vt:2', ['3'] = 'vt:3' }
local CLOCK_FIELD = { [0] = 'clock:0', 'clock:1', 'clock:2', 'clock:3', ['0'] = 'clock:0', ['1'] = 'clock:1',
    ['2'] = 'clock:2', ['3'] = 'clock:3' }
-- Virtual times of bands and the weight are read when first asked for.
local RUN_INDEX = {
    __index = function(record, field)
        if field ~= 'weight' and not BANDS[match(field, '^vt:(.)$') or ''] then
            return nil
        end
        local value = tonumber(call('HGET', P .. 'run:' .. rawget(record, 'name'), field)) or (field == 'weight' and 100 or 0)
        rawset(record, field, value)
        return value
    end,
}

-- A count as it was read, and what this call had added to it before.
local function count_read(record, field, text, bumps)
    local value = text and (SMALL_OF[text] or tonumber(text)) or 0
    record[RUN_BEFORE[field]] = value
    if bumps and bumps[field] then
        value, bumps[field], record.touched = value + bumps[field], nil, true
    end
    record[field] = value
end

--[[
What is needed of a run, read once a call; counts and virtual times are written at its end. band: of a claim, which will want
that virtual time and the weight.
--]]
function F.run(run, band)
    local record = RUNS[run]
    if record then
        return record
    end
    local v, time
    if band then
        time = VT_FIELD[band]
        v = call('HMGET', P .. 'run:' .. run, 'active', 'n:queued', 'n:running', time, 'paused', 'cap', 'weight')
    elseif CLAIMS then -- A complete before its claim.
        time = VT_FIELD[2]
        v = call('HMGET', P .. 'run:' .. run, 'active', 'n:queued', 'n:running', time, 'paused', 'cap', 'weight', 'n:done')
    else
        v = call('HMGET', P .. 'run:' .. run, 'active', 'n:queued', 'n:running', 'n:done', 'paused', 'cap')
    end
    record = { name = run, paused = v[5] == '1', cap = v[6] and tonumber(v[6]) or 0, touched = false, moved = false,
        active = 0, ['was active'] = 0, ['n:queued'] = 0, ['was n:queued'] = 0, ['n:running'] = 0, ['was n:running'] = 0,
        ['n:done'] = false }
    local bumps = RUN_BUMPS[run]
    count_read(record, 'active', v[1], bumps)
    count_read(record, 'n:queued', v[2], bumps)
    count_read(record, 'n:running', v[3], bumps)
    if time then
        record[time], record.weight = v[4] and tonumber(v[4]) or 0, v[7] and tonumber(v[7]) or 100
    end
    if not band then
        count_read(record, 'n:done', time and v[8] or not time and v[4], bumps)
    end
    RUNS[run] = setmetatable(record, RUN_INDEX)
    return record
end

function F.run_bump(run, field, delta)
    local record = RUNS[run]
    if record and RUN_BEFORE[field] and record[field] then
        record[field], record.touched = record[field] + delta, true
        return
    end
    local bumps = RUN_BUMPS[run]
    if not bumps then
        RUN_BUMPS[run] = { [field] = delta }
        return
    end
    bumps[field] = (bumps[field] or 0) + delta
end

function F.blocked(run)
    return run.paused or (run.cap > 0 and run.active >= run.cap)
end

-- Neither paused nor capped: the end of a job that ran changes nothing for those that wait.
function F.run_free(name)
    local run = F.run(name)
    return not run.paused and run.cap == 0
end

function F.wake(class)
    Q.mended('wake:' .. class, call, 'ZADD', P .. 'wake:' .. class, '0', '0')
end

--[[
retag: the flow was just served and takes its new place in the line; waiting: the caller just put a job there. Returns whether
the flow is ready, and whether it had been before: a claim finds out by itself whether its run may be served.
--]]
function F.settle(flow, class, band, retag, waiting)
    local ready, seen = P .. 'ready:' .. class .. ':' .. band, FLOWS[flow]
    if waiting and ((seen and seen.ready == ready) or call('ZSCORE', ready, flow)) then
        if seen then
            seen.ready = ready -- For the submits to it that follow in this call.
        end
        return true, true
    end
    local name = match(flow, '^[^/]+')
    local run = F.run(name, waiting and band) -- Where it is not ready yet its virtual time is wanted.
    retag = retag or waiting -- It is not there: it takes a place too.
    if not waiting then
        local suffix = flow .. ':' .. class .. ':' .. band
        waiting = call('EXISTS', P .. 'wait:' .. suffix, P .. 'begun:' .. suffix) > 0
    end
    local limited = run.paused or run.cap > 0
    if waiting and not F.blocked(run) then
        if retag or not call('ZSCORE', ready, flow) then
            call('ZADD', ready, number_text(max(run[VT_FIELD[band]], META[CLOCK_FIELD[band]])), flow)
        end
        if limited then
            call('SREM', P .. 'parked:' .. name, class .. ':' .. band .. ':' .. flow)
        end
        return true, false
    end
    call('ZREM', ready, flow)
    if seen then
        seen.ready = false
    end
    if waiting then
        call('SADD', P .. 'parked:' .. name, class .. ':' .. band .. ':' .. flow)
    elseif limited then
        call('SREM', P .. 'parked:' .. name, class .. ':' .. band .. ':' .. flow)
    end
    return false, false
end

-- Flows that a cap or a pause had parked come back, a slice a call; `unpark` remembers runs that have more.
function F.unpark(name)
    local key = P .. 'parked:' .. name
    if F.blocked(F.run(name)) then
        return -- Later: whatever frees the run comes here again.
    end
    for _, member in ipairs(call('SPOP', key, SLICE)) do
        local class, band, flow = member:match('^(%d+):([0-3]):(.+)$')
        if flow and (F.settle(flow, class, band)) then
            F.wake(class)
        end
    end
    if call('SCARD', key) > 0 then
        call('SADD', P .. 'unpark', name)
    else
        call('SREM', P .. 'unpark', name)
    end
end

-- A slot of the run came free: only a run with a cap can have flows that waited for it.
function F.run_freed(name)
    local run = F.run(name)
    if run.cap > 0 and not F.blocked(run) then
        F.unpark(name)
    end
end

local function cost_read(suite)
    local cost = COSTS[suite]
    if not cost then
        cost = { seconds = tonumber(Q.mended('cost', call, 'HGET', P .. 'cost', suite)), learned = false }
        COSTS[suite] = cost
    end
    return cost
end

-- Seconds that a job of the suite takes, for fairness.
function F.cost(suite)
    return math.min(max(cost_read(suite).seconds or 1, 1), 86400)
end

-- Learned from attempts of a second or more, and written at the end of the call. started: as text, or what is none.
function F.cost_learn(suite, started)
    local seconds = floor((NOW - (started and tonumber(started) or NOW)) / 1000)
    if seconds >= 1 then
        local cost = cost_read(suite)
        cost.seconds = max(1, floor((cost.seconds or seconds) * 0.75 + seconds * 0.25 + 0.5))
        cost.learned = true
    end
end

-- Which classes may not be claimed: those of suites that are paused or at their cap.
function F.suite_settle(suite)
    local v = call('HMGET', P .. 'suite:' .. suite, 'paused', 'cap')
    local cap = tonumber(v[2]) or 0
    local classes = F.suite_classes(suite)
    local reason
    if v[1] == '1' then
        reason = 'paused'
    elseif cap > 0 then
        local active = 0
        for _, class in ipairs(classes) do
            active = active + (tonumber(call('HGET', P .. 'n', 'active:' .. class)) or 0) +
                (BUMPS['active:' .. class] or 0)
        end
        if active >= cap then
            reason = 'cap'
        end
    end
    for _, class in ipairs(classes) do
        if reason then
            call('HSET', P .. 'block', class, reason)
        elseif call('HDEL', P .. 'block', class) == 1 then
            F.wake(class)
        end
    end
end

function F.suite_active(suite)
    if Q.meta().suites_limited > 0 then
        F.suite_settle(suite)
    end
end

function F.suite_classes(suite)
    local list = {}
    local all = call('HGETALL', P .. 'classes')
    for i = 1, #all, 2 do
        if all[i + 1]:match('^(%S+)') == suite then
            list[#list + 1] = all[i]
        end
    end
    return list
end

--[[
The class of (suite, needs); needs "*": as the suite's workers registered it, now or later. Returns its number as
text, and the suite's `every`; number nil: there are 64 classes and none of them is idle.
--]]
function F.class(suite, needs)
    local name = suite .. ' ' .. needs
    local known = CLASSES[name]
    if not known then
        local v = call('HMGET', P .. 'class', name, 'every:' .. suite)
        known = { number = v[1] or nil, every = v[2] and tonumber(v[2]) or 1 }
        CLASSES[name] = known
    end
    return known.number, known.every, name
end

function F.class_free()
    local used = call('HGETALL', P .. 'classes')
    if #used / 2 < CLASSES_MAX then
        local taken = {}
        for i = 1, #used, 2 do
            taken[used[i]] = true
        end
        for number = 1, CLASSES_MAX do
            if not taken[tostring(number)] then
                return tostring(number)
            end
        end
    end
    for i = 1, #used, 2 do -- An idle class of a suite that nobody registered makes room.
        local class, name = used[i], used[i + 1]
        local suite = name:match('^(%S+)') or ''
        local open = 0
        for _, state in ipairs({ 'queued:', 'delayed:', 'running:', 'active:' }) do
            open = open + (tonumber(call('HGET', P .. 'n', state .. class)) or 0) + (BUMPS[state .. class] or 0)
        end
        if open == 0 and (not name:find(' %*$') or call('EXISTS', P .. 'suite:' .. suite) == 0) then
            call('HDEL', P .. 'class', name)
            call('HDEL', P .. 'classes', class)
            call('HDEL', P .. 'block', class)
            return class
        end
    end
    return nil
end

function F.class_make(suite, needs)
    local class, every, name = F.class(suite, needs)
    if not class then
        class = F.class_free()
        if not class then
            return nil
        end
        CLASSES = {} -- One that was idle may have made room.
        call('HSET', P .. 'class', name, class)
        call('HSET', P .. 'classes', class, name)
        Q.meta_set('classes_version', Q.meta().classes_version + 1)
        F.suite_active(suite)
    end
    return class, every
end

-- Under `latest`: waiting jobs of the flow below floor are skipped, a slice a call; `supersede` remembers the rest.
function F.supersede(flow, floor)
    local from = call('HGET', P .. 'flow:' .. flow, 'superseded')
    local slice = call('ZRANGEBYSCORE', P .. 'open:' .. flow, from and '(' .. from or '-inf', '(' .. text_of(floor),
        'WITHSCORES', 'LIMIT', 0, SLICE)
    local reason = 'superseded by step ' .. text_of(floor % SPAN)
    for i = 1, #slice, 2 do
        local id = J.id_of(flow, slice[i])
        local ok, problem = pcall(function()
            local j = J.load(id)
            if j and J.sane(j) and (j.state == 'queued' or j.state == 'delayed') and j.merge ~= '1' then
                J.finish(j, 'skipped', reason)
            end
        end)
        if not ok and not Q.keys.blameless(problem) then
            J.set_aside(id or slice[i], error_text(problem, id))
        end
    end
    if #slice == 2 * SLICE then
        call('HSET', P .. 'flow:' .. flow, 'superseded', slice[#slice])
        call('ZADD', P .. 'supersede', floor, flow)
    elseif from then
        call('HDEL', P .. 'flow:' .. flow, 'superseded')
        call('ZREM', P .. 'supersede', flow)
    end
end
