--[[
Flow: fairness between runs, pauses and caps, classes. A flow (run, variant, suite) with waiting jobs is in
`ready:CLASS:BAND`, scored by its virtual start. While its run is paused or at its cap, it is in `parked:RUN` instead.
Flow.settle() decides which. It is called after each change that can add or remove a waiting job, or block or unblock the
run.
--]]

local VT_FIELD = { [0] = 'vt:0', 'vt:1', 'vt:2', 'vt:3', ['0'] = 'vt:0', ['1'] = 'vt:1', ['2'] = 'vt:2', ['3'] = 'vt:3' }
local CLOCK_FIELD = { [0] = 'clock:0', 'clock:1', 'clock:2', 'clock:3', ['0'] = 'clock:0', ['1'] = 'clock:1',
    ['2'] = 'clock:2', ['3'] = 'clock:3' }
-- The virtual times of the bands and the weight of a run are read on first use.
local RUN_INDEX = {
    __index = function(record, field)
        if field ~= 'weight' and not BANDS[match(field, '^vt:(.)$') or ''] then
            return nil
        end
        local value = tonumber(call('HGET', PREFIX .. 'run:' .. rawget(record, 'name'), field)) or (field == 'weight' and 100 or 0)
        rawset(record, field, value)
        return value
    end,
}

-- Sets a count of the record: the value that was read, plus what this call added before.
local function count_read(record, field, text, bumps)
    local value = text and (SMALL_OF[text] or tonumber(text)) or 0
    record[RUN_BEFORE[field]] = value
    if bumps and bumps[field] then
        value, bumps[field], record.touched = value + bumps[field], nil, true
    end
    record[field] = value
end

--[[
The record of a run, read once a call. Its counts and virtual times are written at the end of the call. band: a claim's,
which also needs the virtual time of that band and the weight.
--]]
function Flow.run(run, band)
    local record = RUNS[run]
    if record then
        return record
    end
    local values, time
    if band then
        time = VT_FIELD[band]
        values = call('HMGET', PREFIX .. 'run:' .. run, 'active', 'n:queued', 'n:running', time, 'paused', 'cap', 'weight')
    elseif CLAIMS then -- This is complete_claim: its claim follows.
        time = VT_FIELD[2]
        values = call('HMGET', PREFIX .. 'run:' .. run, 'active', 'n:queued', 'n:running', time, 'paused', 'cap', 'weight',
            'n:done')
    else
        values = call('HMGET', PREFIX .. 'run:' .. run, 'active', 'n:queued', 'n:running', 'n:done', 'paused', 'cap')
    end
    record = { name = run, paused = values[5] == '1', cap = values[6] and tonumber(values[6]) or 0, touched = false, moved = false,
        active = 0, ['was active'] = 0, ['n:queued'] = 0, ['was n:queued'] = 0, ['n:running'] = 0, ['was n:running'] = 0,
        ['n:done'] = false }
    local bumps = RUN_BUMPS[run]
    count_read(record, 'active', values[1], bumps)
    count_read(record, 'n:queued', values[2], bumps)
    count_read(record, 'n:running', values[3], bumps)
    if time then
        record[time], record.weight = values[4] and tonumber(values[4]) or 0, values[7] and tonumber(values[7]) or 100
    end
    if not band then
        count_read(record, 'n:done', time and values[8] or not time and values[4], bumps)
    end
    RUNS[run] = setmetatable(record, RUN_INDEX)
    return record
end

function Flow.bump_run(run, field, delta)
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

function Flow.is_blocked(run)
    return run.paused or (run.cap > 0 and run.active >= run.cap)
end

-- Whether the run is neither paused nor capped. Then the end of one of its jobs moves no waiting job.
function Flow.is_unlimited(name)
    local run = Flow.run(name)
    return not run.paused and run.cap == 0
end

function Flow.wake(class)
    Queue.repairing('wake:' .. class, call, 'ZADD', PREFIX .. 'wake:' .. class, '0', '0')
end

--[[
Puts a flow into its ready set or into `parked`, or removes it from both. retag: the flow was just served and goes to
its new place in the line. waiting: the caller just added a job. Returns whether the flow is ready, and whether it was
ready before.
--]]
function Flow.settle(flow, class, band, retag, waiting)
    local ready, seen = PREFIX .. 'ready:' .. class .. ':' .. band, FLOWS[flow]
    if waiting and ((seen and seen.ready == ready) or call('ZSCORE', ready, flow)) then
        if seen then
            seen.ready = ready -- For later submits to the flow in this call.
        end
        return true, true
    end
    local name = match(flow, '^[^/]+')
    local run = Flow.run(name, waiting and band) -- A flow that becomes ready needs its virtual time.
    retag = retag or waiting
    if not waiting then
        local suffix = flow .. ':' .. class .. ':' .. band
        waiting = call('EXISTS', PREFIX .. 'wait:' .. suffix, PREFIX .. 'begun:' .. suffix) > 0
    end
    local limited = run.paused or run.cap > 0
    if waiting and not Flow.is_blocked(run) then
        if retag or not call('ZSCORE', ready, flow) then
            call('ZADD', ready, number_text(max(run[VT_FIELD[band]], META[CLOCK_FIELD[band]])), flow)
        end
        if limited then
            call('SREM', PREFIX .. 'parked:' .. name, class .. ':' .. band .. ':' .. flow)
        end
        return true, false
    end
    call('ZREM', ready, flow)
    if seen then
        seen.ready = false
    end
    if waiting then
        call('SADD', PREFIX .. 'parked:' .. name, class .. ':' .. band .. ':' .. flow)
    elseif limited then
        call('SREM', PREFIX .. 'parked:' .. name, class .. ':' .. band .. ':' .. flow)
    end
    return false, false
end

-- Brings parked flows of the run back, at most a slice in one call. The set `unpark` remembers runs that have more.
function Flow.unpark(name)
    local key = PREFIX .. 'parked:' .. name
    if Flow.is_blocked(Flow.run(name)) then
        return -- Whatever unblocks the run calls this again.
    end
    for _, member in ipairs(call('SPOP', key, SLICE)) do
        local class, band, flow = member:match('^(%d+):([0-3]):(.+)$')
        if flow and (Flow.settle(flow, class, band)) then
            Flow.wake(class)
        end
    end
    if call('SCARD', key) > 0 then
        call('SADD', PREFIX .. 'unpark', name)
    else
        call('SREM', PREFIX .. 'unpark', name)
    end
end

-- A job of the run ended. Only a run with a cap can have flows that waited for this.
function Flow.slot_freed(name)
    local run = Flow.run(name)
    if run.cap > 0 and not Flow.is_blocked(run) then
        Flow.unpark(name)
    end
end

local function cost_read(suite)
    local cost = COSTS[suite]
    if not cost then
        cost = { seconds = tonumber(Queue.repairing('cost', call, 'HGET', PREFIX .. 'cost', suite)), learned = false }
        COSTS[suite] = cost
    end
    return cost
end

-- How many seconds a job of the suite takes, for fairness.
function Flow.cost(suite)
    return math.min(max(cost_read(suite).seconds or 1, 1), 86400)
end

-- Learns from an attempt of a second or more. Written at the end of the call. started: text, or nil or false.
function Flow.learn_cost(suite, started)
    local seconds = floor((NOW - (started and tonumber(started) or NOW)) / 1000)
    if seconds >= 1 then
        local cost = cost_read(suite)
        cost.seconds = max(1, floor((cost.seconds or seconds) * 0.75 + seconds * 0.25 + 0.5))
        cost.learned = true
    end
end

-- Blocks the classes of a suite that is paused or at its cap, and unblocks them otherwise.
function Flow.settle_suite(suite)
    local values = call('HMGET', PREFIX .. 'suite:' .. suite, 'paused', 'cap')
    local cap = tonumber(values[2]) or 0
    local classes = Flow.suite_classes(suite)
    local reason
    if values[1] == '1' then
        reason = 'paused'
    elseif cap > 0 then
        local active = 0
        for _, class in ipairs(classes) do
            active = active + (tonumber(call('HGET', PREFIX .. 'n', 'active:' .. class)) or 0) +
                (BUMPS['active:' .. class] or 0)
        end
        if active >= cap then
            reason = 'cap'
        end
    end
    for _, class in ipairs(classes) do
        if reason then
            call('HSET', PREFIX .. 'block', class, reason)
        elseif call('HDEL', PREFIX .. 'block', class) == 1 then
            Flow.wake(class)
        end
    end
end

function Flow.suite_changed(suite)
    if Queue.meta().suites_limited > 0 then
        Flow.settle_suite(suite)
    end
end

function Flow.suite_classes(suite)
    local list = {}
    local all = call('HGETALL', PREFIX .. 'classes')
    for i = 1, #all, 2 do
        if all[i + 1]:match('^(%S+)') == suite then
            list[#list + 1] = all[i]
        end
    end
    return list
end

--[[
The class of (suite, needs). needs "*": those that the suite's workers registered, or will register. Returns its number
as text or nil, the suite's `every`, and the class's name.
--]]
function Flow.class(suite, needs)
    local name = suite .. ' ' .. needs
    local known = CLASSES[name]
    if not known then
        local values = call('HMGET', PREFIX .. 'class', name, 'every:' .. suite)
        known = { number = values[1] or nil, every = values[2] and tonumber(values[2]) or 1 }
        CLASSES[name] = known
    end
    return known.number, known.every, name
end

function Flow.free_class()
    local used = call('HGETALL', PREFIX .. 'classes')
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
    for i = 1, #used, 2 do -- An idle class of a suite that no worker registered makes room.
        local class, name = used[i], used[i + 1]
        local suite = name:match('^(%S+)') or ''
        local open = 0
        for _, state in ipairs({ 'queued:', 'delayed:', 'running:', 'active:' }) do
            open = open + (tonumber(call('HGET', PREFIX .. 'n', state .. class)) or 0) + (BUMPS[state .. class] or 0)
        end
        if open == 0 and (not name:find(' %*$') or call('EXISTS', PREFIX .. 'suite:' .. suite) == 0) then
            call('HDEL', PREFIX .. 'class', name)
            call('HDEL', PREFIX .. 'classes', class)
            call('HDEL', PREFIX .. 'block', class)
            return class
        end
    end
    return nil
end

function Flow.make_class(suite, needs)
    local class, every, name = Flow.class(suite, needs)
    if not class then
        class = Flow.free_class()
        if not class then
            return nil
        end
        CLASSES = {} -- An idle class may have made room.
        call('HSET', PREFIX .. 'class', name, class)
        call('HSET', PREFIX .. 'classes', class, name)
        Queue.set_meta('classes_version', Queue.meta().classes_version + 1)
        Flow.suite_changed(suite)
    end
    return class, every
end

-- For the policy `latest`: skips waiting jobs of the flow below the place `floor`, at most a slice in one call. The set
-- `supersede` remembers flows that have more.
function Flow.supersede(flow, floor)
    local from = call('HGET', PREFIX .. 'flow:' .. flow, 'superseded')
    local slice = call('ZRANGEBYSCORE', PREFIX .. 'open:' .. flow, from and '(' .. from or '-inf', '(' .. text_of(floor),
        'WITHSCORES', 'LIMIT', 0, SLICE)
    local reason = 'superseded by step ' .. text_of(floor % SPAN)
    for i = 1, #slice, 2 do
        local id = Job.id_of(flow, slice[i])
        local ok, problem = pcall(function()
            local job = Job.load(id)
            if job and Job.is_sane(job) and (job.state == 'queued' or job.state == 'delayed') and job.merge ~= '1' then
                Job.finish(job, 'skipped', reason)
            end
        end)
        if not ok and not Keys.blameless(problem) then
            Job.set_aside(id or slice[i], error_text(problem, id))
        end
    end
    if #slice == 2 * SLICE then
        call('HSET', PREFIX .. 'flow:' .. flow, 'superseded', slice[#slice])
        call('ZADD', PREFIX .. 'supersede', floor, flow)
    elseif from then
        call('HDEL', PREFIX .. 'flow:' .. flow, 'superseded')
        call('ZREM', PREFIX .. 'supersede', flow)
    end
end

-- Sets a field of a suite, and counts the paused or capped suites. Claims check suites only if there are any.
function Flow.limit_suite(name, field, value)
    local before = call('HMGET', PREFIX .. 'suite:' .. name, 'paused', 'cap')
    local limited = before[1] == '1' or (tonumber(before[2]) or 0) > 0
    call('HSET', PREFIX .. 'suite:' .. name, field, value)
    local after = call('HMGET', PREFIX .. 'suite:' .. name, 'paused', 'cap')
    local limits = after[1] == '1' or (tonumber(after[2]) or 0) > 0
    if limited ~= limits then
        Queue.set_meta('suites_limited', math.max(Queue.meta().suites_limited + (limits and 1 or -1), 0))
    end
    call('ZADD', PREFIX .. 'suites', 'NX', NOW, name)
    Flow.settle_suite(name)
end
