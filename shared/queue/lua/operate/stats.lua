--[[
stats: returns an overview of the whole queue.

KEYS[1] prefix "evalq:{queue}:"

Returns JSON: now_ms, epoch, build, paused, states, totals, classes, oldest_waiting_ms, workers, suites, sinks, losses,
        waiting, runs, results, bad, keys, due_ms. Shapes in docs/protocol.md.
Cost    O(C + workers + sinks + suites), each bounded.
--]]
local function states_of(n)
    local states = {}
    for _, state in ipairs(STATES) do
        states[state] = 0
    end
    for field, count in pairs(n) do
        local state = field:match('^(%a+):%d+$') or field
        if states[state] then
            states[state] = states[state] + (tonumber(count) or 0)
        end
    end
    return states
end

-- The longest-waiting job among the first 50 flows of a class and band.
local function oldest(class, band)
    local first
    for _, flow in ipairs(call('ZRANGE', PREFIX .. 'ready:' .. class .. ':' .. band, 0, 49)) do
        local tag = call('ZRANGE', PREFIX .. 'wait:' .. flow .. ':' .. class .. ':' .. band, 0, 0)[1]
        local id = tag and Job.id_of(flow, tag)
        if id then
            local values = call('HMGET', PREFIX .. 'job:' .. id, 'queued', 'submitted')
            local at = tonumber(values[1]) or tonumber(values[2])
            if at and (not first or at < first) then
                first = at
            end
        end
    end
    return first
end

local function classes_view(n, workers, waiting)
    local list, first = {}, nil
    local all = call('HGETALL', PREFIX .. 'classes')
    for i = 1, #all, 2 do
        local class = all[i]
        local suite, needs = View.class_of(class)
        local view = { number = View.number(class), suite = suite, needs = needs,
            queued = View.number(n['queued:' .. class]), delayed = View.number(n['delayed:' .. class]),
            running = View.number(n['running:' .. class]), active = View.number(n['active:' .. class]) }
        for band = 0, 3 do
            local ok, at = pcall(oldest, class, band)
            if ok and at and (not first or at < first) then
                first = at
            end
            if ok and at then
                view.oldest_ms = math.max(view.oldest_ms or 0, NOW - at)
            end
        end
        local reason = view.queued > 0 and View.why_class_waits(class, suite, needs, workers)
        if reason then
            view.why = reason
            waiting[reason] = (waiting[reason] or 0) + view.queued
        end
        list[#list + 1] = view
    end
    table.sort(list, function(a, b) return a.number < b.number end)
    return list, first
end

local function suites_view(workers)
    local list = {}
    local ok, costs = pcall(call, 'HGETALL', PREFIX .. 'cost')
    costs = Results.map(ok and costs or {})
    for _, name in ipairs(call('ZRANGE', PREFIX .. 'suites', 0, 255)) do
        local suite = Results.map(call('HGETALL', PREFIX .. 'suite:' .. name))
        list[#list + 1] = { name = name, digest = suite.digest or '', needs = suite.needs or '', shards = View.number(suite.shards),
            every = View.number(suite.every), where = suite.where or '', paused = suite.paused == '1', cap = View.number(suite.cap),
            cost_s = View.number(costs[name]), offered = View.offered(name, workers) }
    end
    return list
end

-- A stream's length; 0 if the key has another type, because the next writer makes it again.
local function length(name)
    local ok, entries = pcall(call, 'XLEN', PREFIX .. name)
    return ok and entries or 0
end

local function sinks_view()
    local list = {}
    for _, need in ipairs(Results.needs()) do
        local group = need.group
        list[#list + 1] = { name = need.sink, seen_age_ms = NOW - need.seen, needs = need.low,
            pending = group and group.pending or 0, lag = group and group.lag or length('results'),
            error = call('HGET', PREFIX .. 'sink:' .. need.sink, 'error') or '' }
    end
    return list
end

local function losses_view()
    local list = {}
    for _, text in ipairs(call('LRANGE', PREFIX .. 'loss', -100, -1)) do
        local ok, loss = pcall(cjson.decode, text)
        if ok and type(loss) == 'table' then
            list[#list + 1] = View.printable(loss)
        end
    end
    return list
end

local function runs_paused(runs)
    local list = {}
    for _, run in ipairs(runs) do
        if Keys.tried(call, 'HGET', PREFIX .. 'run:' .. run, 'paused') == '1' then
            list[#list + 1] = run
        end
    end
    return list
end

-- A sentence for each key that has another type than evalq gives it.
local function keys_view(classes, runs)
    local list = {}
    for _, key in ipairs(Keys.all_wrong(classes, runs)) do
        list[#list + 1] = { key = PREFIX .. key.name, type = key.is, expected = key.kind }
    end
    return list
end

verb('stats', 'ro', function(args)
    args_exactly(args, 0, 'none')
    local tried = Keys.tried -- Of a key that is rubbish nothing is seen but that.
    local n, meta = Results.map(tried(call, 'HGETALL', PREFIX .. 'n') or {}), Queue.meta()
    local workers, waiting, classes, first = View.workers(), {}, {}, nil
    tried(function()
        classes, first = classes_view(n, workers, waiting)
    end)
    local due = Sweep.next_due()
    local runs = tried(call, 'ZREVRANGE', PREFIX .. 'runs', 0, 255) or {}
    local totals = {}
    for _, field in ipairs({ 'submitted', 'published', 'reclaimed', 'regained', 'suspected', 'adopted', 'forgotten',
        'bad', 'bad_entries', 'losses' }) do
        totals[field] = View.number(n[field])
    end
    return View.json({ now_ms = NOW, epoch = meta.epoch, build = BUILD, lease_ms = meta.lease_ms,
        paused = { queue = meta.paused == 1, runs = View.array(runs_paused(runs)) }, states = states_of(n), totals = totals,
        classes = View.array(classes), oldest_waiting_ms = first and NOW - first or -1,
        due_ms = due and math.max(due - NOW, 0) or -1, workers = View.array(workers),
        suites = View.array(tried(suites_view, workers) or {}), sinks = View.array(tried(sinks_view) or {}),
        losses = View.array(tried(losses_view) or {}), waiting = waiting, runs = tried(call, 'ZCARD', PREFIX .. 'runs') or 0,
        flows = tried(call, 'ZCARD', PREFIX .. 'flows') or 0,
        results = { length = length('results'), max = meta.results_max },
        bad = length('bad'), keys = View.array(keys_view(#classes, runs)) })
end)
