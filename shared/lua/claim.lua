--[[
claim: give the next jobs that fit this worker's slots to one attempt each.

KEYS[1] prefix    "evalq:{queue}:", fixes the hash slot of every key derived from it
ARGV[1] worker    id of the claiming process, at most 64 printable bytes
ARGV[2] request   at most 64 bytes, new for each claim; the same again returns those still valid (lost reply)
ARGV[3] lease_ms  1 to 3600000: how long the attempt may be silent
ARGV[4] count     1 to 64: how many jobs at most
ARGV[5] nclasses  0 to 64
ARGV[6...] class  numbers of the classes that fit

Returns {"jobs" | "none", now, classes_version, due_ms, {id, token, record, attempt, shard, shards, merge, alone,
        queued_ms, task_done...}...}.
Holds   an unfinished job is in exactly one of wait, begun, delayed, leases, sharded, before and after.
Cost    O(C + log n) a job, C classes named; at most 8 looks and 8 promotions besides.
--]]

-- nclasses class..., the last arguments, from args[at].
function V.classes_read(args, at)
    local classes = {}
    local n = integer_arg(args, at, 0, CLASSES_MAX, 'nclasses')
    if #args ~= at + n then
        refuse('expected ' .. n .. ' classes, got ' .. (#args - at))
    end
    for i = 1, n do
        classes[i] = text_of(integer_arg(args, at + i, 1, CLASSES_MAX, 'class'))
    end
    return classes
end

-- Checked arguments from args[at].
function V.claim_read(args, at)
    local c = { worker = label_arg(args, at, 64, 'worker'), request = label_arg(args, at + 1, 64, 'request'),
        lease = integer_arg(args, at + 2, 1, LEASE_MS_MAX, 'lease_ms'), count = integer_arg(args, at + 3, 1, 64, 'count') }
    c.classes = V.classes_read(args, at + 4)
    return c
end

-- The flow to serve next in one class and band, with its virtual start; nil when there is none.
local function head(c, class, band)
    local ready = P .. 'ready:' .. class .. ':' .. SMALL[band]
    for _ = 1, 4 * FEW do
        local row = call('ZRANGE', ready, '0', '0', 'WITHSCORES')
        if not row[1] then
            return nil
        end
        local flow, start = row[1], tonumber(row[2])
        local name, variant, suite = match(flow, '^([^/]+)/([^/]+)/([^/]+)$')
        local run = F.run(name or match(flow, '^[^/]+') or '', band)
        if F.blocked(run) then
            F.settle(flow, class, SMALL[band])
        elseif run[VT_FIELD[band]] > start then
            call('ZADD', ready, 'XX', number_text(run[VT_FIELD[band]]), flow)
        else
            local suffix = flow .. ':' .. class .. ':' .. SMALL[band]
            return { flow = flow, start = start, run = run, class = class, band = band, band_text = SMALL[band],
                ready = ready, wait = P .. 'wait:' .. suffix, begun = P .. 'begun:' .. suffix, name = name,
                variant = variant, suite = suite }
        end
    end
    c.cut = true
    return nil
end

-- The best head over the named classes; heads are kept between the jobs of one call while they hold.
local function choose(c, band)
    local best
    local heads = c.heads[band]
    for i = 1, #c.open do
        local class = c.open[i]
        local entry = heads[class]
        if entry == nil or (entry and (entry.run[VT_FIELD[band]] > entry.start or F.blocked(entry.run))) then
            local ok, found = pcall(head, c, class, band)
            if not ok then -- Of no run: left there it would stand before all others for ever.
                local gone, row = pcall(call, 'ZPOPMIN', P .. 'ready:' .. class .. ':' .. band)
                Q.bad('ready:' .. class .. ':' .. band, error_text(found), gone and row[1] or '')
                c.cut = true
            end
            entry = ok and found or false
            heads[class] = entry
        end
        if entry and (not best or entry.start < best.start) then
            best = entry
        end
    end
    return best
end

-- Takes the flow's next job off its waiting set, by the flow's policy.
local function pop(h)
    local policy = call('HGET', P .. 'flow:' .. h.flow, 'policy')
    if policy ~= 'backfill' and policy ~= 'latest' then
        local popped = call('ZMPOP', '2', h.begun, h.wait, 'MIN')
        return popped and popped[2][1][1]
    end
    local tag = call('ZPOPMIN', h.begun)[1]
    if tag then
        return tag
    end
    if policy == 'backfill' then
        return F.backfill.pop(h.flow, h.class, h.band_text)
    end
    return call('ZPOPMAX', h.wait)[1]
end

local function cost_of(c, suite)
    local cost = c.costs[suite]
    if not cost then
        cost = math.min(max(tonumber(call('HGET', P .. 'cost', suite)) or 1, 1), 86400)
        c.costs[suite] = cost
    end
    return cost
end

-- What a claimer is told of one attempt.
function V.claim_row(j, record, tasks)
    local row = { j.id, j.token, record or '', text_of(j.attempts), j.shard and text_of(j.shard) or '-1',
        j.shard and j.shards or '0', j.merge == '1' and '1' or '0', j.alone == '1' and '1' or '0',
        text_of(max(NOW - (tonumber(j.submitted) or NOW), 0)) }
    if tasks then
        for _, task in ipairs(tasks) do
            row[#row + 1] = task
        end
    end
    return row
end

local function row_of(j)
    local tasks = j.tasks and (tonumber(j.tasks) or 0) > 0 and call('HKEYS', P .. 'res:' .. j.id) or nil
    return V.claim_row(j, P .. 'msg:' .. (j.parent or j.id), tasks)
end

-- Rows are made with the key of their record in its place; the records come in one call.
local function records_read(rows)
    local keys = {}
    for i, row in ipairs(rows) do
        keys[i] = row[3]
    end
    if #keys > 0 then
        for i, record in ipairs(call('MGET', unpack(keys))) do
            rows[i][3] = record or ''
        end
    end
end

-- Submitted before any worker had told its suite's `every`: such a step is found not to be due when its turn comes.
function V.due(c, j)
    if j.keep == '1' or j.shard or j.merge == '1' then
        return true
    end
    local every = c.every[j.suite]
    if not every then
        every = tonumber(call('HGET', P .. 'class', 'every:' .. j.suite)) or 1
        c.every[j.suite] = every
    end
    return every <= 1 or tonumber(j.step) % every == 0
end

-- Makes one popped job an attempt; nil: it was not due, and is skipped.
local function start(c, h, tag)
    local j = J.of_flow(h, tag)
    local id = j and j.id
    j = j and J.load(id, FIELDS_CLAIM, j)
    if not j or j.state ~= 'queued' or not J.sane(j) or j.class ~= h.class or j.priority ~= h.band_text then
        error('EVQ_CORRUPT a waiting entry without a queued job of its class and band', 0)
    end
    if not V.due(c, j) then
        J.finish(j, 'skipped', 'every: step ' .. j.step .. ' is not due')
        return nil
    end
    if not c.token then
        c.token = Q.meta().token
        c.nonce = redis.sha1hex(c.worker .. ' ' .. c.request .. ' ' .. Q.seed() .. ' ' .. Q.meta().epoch):sub(1, 16)
    end
    c.token = c.token + 1
    Q.meta_set('token', c.token)
    local attempts = j.attempts + 1
    local token = text_of(c.token) .. '.' .. c.nonce
    call('HSET', j.key, 'state', 'running', 'token', token, 'attempts', text_of(attempts), 'worker', c.worker, 'started',
        NOW_TEXT, 'lease', c.lease_text, 'hb', '0', 'suspect', '')
    J.count(j, 'queued', -1)
    J.count(j, 'running', 1)
    j.state, j.token, j.attempts = 'running', token, attempts
    J.active(j, 1)
    local row = row_of(j)
    Q.lease(c.look, id) -- Last: a job that is set aside gets none.
    return row
end

-- The run's time moves on by what the job costs, the clock to where it stood; the flow goes to its new place in the line.
local function served(c, h)
    local run, time, clock = h.run, VT_FIELD[h.band], CLOCK_FIELD[h.band]
    local vt = max(run[time], h.start)
    Q.meta_set(clock, max(META[clock], vt))
    vt = vt + cost_of(c, h.suite) * 100 / max(run.weight, 1)
    if run.moved and run.moved ~= time then -- A claim that serves a run in two bands.
        call('HSET', P .. 'run:' .. h.name, run.moved, number_text(run[run.moved]))
    end
    run[time], run.moved, run.touched = vt, time, true
    if run.paused or run.cap > 0 then
        F.settle(h.flow, h.class, h.band_text, true)
    elseif call('EXISTS', h.wait, h.begun) > 0 then
        call('ZADD', h.ready, number_text(max(vt, META[clock])), h.flow)
    else
        call('ZREM', h.ready, h.flow)
    end
end

-- Serves one job of band, or returns nil when the band is empty for these classes.
local function serve(c, band)
    for _ = 1, 4 * FEW do
        local h = choose(c, band)
        if not h then
            return nil
        end
        c.heads[band][h.class] = nil
        local tag, row
        local ok, problem = pcall(pop, h)
        if ok and problem then
            tag = problem
            ok, problem = pcall(start, c, h, tag)
            row = ok and problem
        end
        if row then
            served(c, h)
            return row
        end
        if not ok then
            J.set_aside(tag and J.id_of(h.flow, tag) or h.flow, error_text(problem), h.class,
                tag and not tag:find('@') and ('queued:' .. h.class) or nil)
            if not tag then
                pcall(call, 'ZREM', h.ready, h.flow)
            end
        end
        -- An empty flow leaves its ready set: trap of every fair queue. So does what is no flow.
        if not pcall(F.settle, h.flow, h.class, h.band_text) then
            pcall(call, 'ZREM', h.ready, h.flow)
        end
    end
    c.cut = true
    return nil
end

-- Classes of suites that are neither paused nor at their cap.
function V.classes_open(classes)
    local open = {}
    local reasons = #classes > 0 and call('HMGET', P .. 'block', unpack(classes)) or {}
    for i, class in ipairs(classes) do
        if not reasons[i] then
            open[#open + 1] = class
        end
    end
    return open
end

-- The reply to a request that was answered before: those of its claims that still hold.
local function repeated(c)
    local record = call('HMGET', P .. 'worker:' .. c.worker, 'request', 'claims')
    if record[1] ~= c.request then
        return nil
    end
    local rows = {}
    for id, token in (record[2] or ''):gmatch('(%S+) (%S+)\n') do
        local ok, j = pcall(J.load, id)
        if ok and j and j.token == token and OPEN[j.state] then
            rows[#rows + 1] = row_of(j)
        end
    end
    return rows
end

local function answer(rows)
    records_read(rows)
    local due = call('ZRANGE', P .. 'delayed', '0', '0', 'WITHSCORES')[2]
    local reply = { #rows > 0 and 'jobs' or 'none', text_of(NOW), text_of(Q.meta().classes_version),
        due and text_of(math.max(tonumber(due) - NOW, 0)) or '-1' }
    for _, row in ipairs(rows) do
        reply[#reply + 1] = row
    end
    return reply
end

-- The wake markers of classes that have more are set again: a wake may have been eaten by this very claim.
local function wake_on(c)
    for _, class in ipairs(c.open) do
        local ready = P .. 'ready:' .. class
        if call('EXISTS', ready .. ':0', ready .. ':1', ready .. ':2', ready .. ':3') > 0 then
            F.wake(class)
        end
    end
end

function V.claim(c)
    local before = repeated(c)
    if before then
        return answer(before)
    end
    L.looks_and_promotions()
    local rows, claims = {}, {}
    c.heads, c.costs, c.every, c.open = { [0] = {}, {}, {}, {} }, {}, {}, {}
    c.lease_text, c.look = text_of(c.lease), text_of(NOW + c.lease)
    if Q.meta().paused ~= 1 then
        c.open = V.classes_open(c.classes)
    end
    while #rows < c.count and #c.open > 0 do
        local lowest_first = (Q.meta().served + 1) % 16 == 0
        local row
        for i = 0, 3 do
            row = serve(c, lowest_first and 3 - i or i)
            if row then
                break
            end
        end
        if not row then
            break
        end
        rows[#rows + 1] = row
        claims[#claims + 1] = row[1] .. ' ' .. row[2] .. '\n'
        Q.meta_set('served', Q.meta().served + 1)
        if Q.meta().suites_limited > 0 then
            c.open = V.classes_open(c.classes)
        end
    end
    if #rows > 0 then
        call('HSET', P .. 'worker:' .. c.worker, 'request', c.request, 'claims', table.concat(claims))
        call('PEXPIRE', P .. 'worker:' .. c.worker, '86400000')
        if Q.meta().served % 64 < #rows then
            L.retention(4)
        end
    end
    if Q.meta().idle_until > NOW then
        V.idle_note(c, #rows)
    end
    if #rows == c.count or c.cut then -- Cut: rubbish used up what one call may do; good jobs can stand behind it.
        wake_on(c)
    end
    return answer(rows)
end

verb('claim', 'claim', function(args)
    return V.claim(V.claim_read(args, 1))
end)
