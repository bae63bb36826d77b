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
Cost    O(C + log n) a job, C classes named, and less where jobs of one flow come one after another; at most 8 looks and 8
        promotions besides.
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

--[[
The flows that stand first in a ready set, as many as the call may want, and how far they were taken; back: the lowest start of
those that this call put back behind them. Read anew when one of those may be first.
--]]
local function line_read(c, ready)
    local rows = call('ZRANGE', ready, '0', text_of(c.count - #c.rows), 'WITHSCORES')
    local line = { rows = rows, at = 1, back = math.huge }
    c.lines[ready] = line
    return line
end

-- The start of the line's row at `at`, in its order; math.huge: there is none.
local function start_at(line, at)
    local text = line.rows[at + 1]
    return text and (SMALL_OF[text] or tonumber(text)) or math.huge
end

-- The line after its first flow was served, and put back with that start.
local function line_on(c, h, start)
    local line = c.lines[h.ready]
    line.at, line.back = line.at + 2, math.min(line.back, start)
end

-- The flow to serve next in one class and band, with its virtual start; nil when there is none.
local function head(c, class, band)
    local ready = P .. 'ready:' .. class .. ':' .. SMALL[band]
    for _ = 1, 4 * FEW do
        local line = c.lines[ready]
        if not line or start_at(line, line.at) >= line.back or not line.rows[line.at] then
            line = line_read(c, ready)
        end
        local flow, start = line.rows[line.at], start_at(line, line.at)
        if not flow then
            return nil
        end
        local name, variant, suite = match(flow, '^([^/]+)/([^/]+)/([^/]+)$')
        if suite then
            V.every(c, suite) -- Where that cannot be read nothing is taken yet.
        end
        local run = F.run(name or match(flow, '^[^/]+') or '', band)
        if F.blocked(run) then
            c.lines[ready] = nil
            F.settle(flow, class, SMALL[band])
        elseif run[VT_FIELD[band]] > start then
            c.lines[ready] = nil
            call('ZADD', ready, 'XX', number_text(run[VT_FIELD[band]]), flow)
        else
            local suffix = flow .. ':' .. class .. ':' .. SMALL[band]
            return { flow = flow, start = start, run = run, class = class, band = band, band_text = SMALL[band],
                ready = ready, wait = P .. 'wait:' .. suffix, begun = P .. 'begun:' .. suffix, name = name,
                variant = variant, suite = suite, next = math.min(start_at(line, line.at + 2), line.back),
                cost = false, head = false, rest = false, started = 0 }
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
            if not ok and Q.keys.blameless(found) then
                error(found, 0)
            elseif not ok then -- Of no run: left there it would stand before all others for ever.
                local gone, row = pcall(call, 'ZPOPMIN', P .. 'ready:' .. class .. ':' .. band)
                Q.bad('ready:' .. class .. ':' .. band, error_text(found, gone and row[1]), gone and row[1] or '')
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

local function cost_of(h)
    h.cost = h.cost or (h.suite and F.cost(h.suite) or 1) * 100 / max(h.run.weight, 1)
    return h.cost
end

-- Run's time and band's clock after a job of h has been served, where they stood at vt and clock.
local function moved_on(vt, clock, start, cost)
    vt = max(vt, start)
    return vt + cost, max(clock, vt)
end

-- Whether no other band has a job for these classes: then the sixteenth claim is as the others.
local function one_band(c, band)
    if c.one_band == nil then
        local keys = {}
        for i = 1, #c.open do
            for other = 0, 3 do
                keys[#keys + 1] = other ~= band and P .. 'ready:' .. c.open[i] .. ':' .. SMALL[other] or nil
            end
        end
        c.one_band = call('EXISTS', unpack(keys)) == 0
    end
    return c.one_band
end

-- After how many claims one serves the lowest band first; 0: this one does.
local function lowest_in()
    return 15 - Q.meta().served % 16
end

-- How many jobs of h surely come one after another, before it is another flow's or band's turn.
local function turns(c, h)
    local run, most, other = h.run, c.count - #c.rows, h.next
    local vt, clock, start, cost = run[VT_FIELD[h.band]], META[CLOCK_FIELD[h.band]], h.start, cost_of(h)
    if most == 1 or run.paused or run.cap > 0 or META.suites_limited > 0 or not h.suite or
        max(vt, start) + cost >= other then
        return 1
    end
    if not one_band(c, h.band) then
        most = math.min(most, max(lowest_in(), 1))
    end
    for i = 1, #c.open do
        local entry = c.heads[h.band][c.open[i]]
        if entry and entry ~= h then
            other = math.min(other, entry.start)
        end
    end
    for n = 1, other < math.huge and most - 1 or 0 do
        vt, clock = moved_on(vt, clock, start, cost)
        start = max(vt, clock)
        if start >= other then
            return n
        end
    end
    return most
end

-- Takes the flow's next jobs off its waiting set, by the flow's policy: tag and place of each, and whether they had not begun.
local function pop(c, h, most)
    local policy = call('HGET', P .. 'flow:' .. h.flow, 'policy')
    if policy ~= 'backfill' and policy ~= 'latest' then
        local popped = call('ZMPOP', '2', h.begun, h.wait, 'MIN', 'COUNT', text_of(most or turns(c, h)))
        return popped and popped[2] or {}, popped and popped[1] == h.wait
    end
    local tag = call('ZPOPMIN', h.begun)[1]
    if not tag and policy == 'backfill' then
        tag = F.backfill.pop(h.flow, h.class, h.band_text)
    elseif not tag then
        tag = call('ZPOPMAX', h.wait)[1]
    end
    return tag and { { tag } } or {}
end

-- Milliseconds since a job's submit, as text.
local function waited(submitted)
    return text_of(max(NOW - (submitted and tonumber(submitted) or NOW), 0))
end

-- What a claimer is told of one attempt.
function V.claim_row(j, record, tasks)
    local row = { j.id, j.token, record or '', text_of(j.attempts), j.shard and text_of(j.shard) or '-1',
        j.shard and j.shards or '0', j.merge == '1' and '1' or '0', j.alone == '1' and '1' or '0', waited(j.submitted) }
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

function V.every(c, suite)
    local every = c.every[suite]
    if not every then
        every = tonumber(call('HGET', P .. 'class', 'every:' .. suite)) or 1
        c.every[suite] = every
    end
    return every
end

-- Submitted before any worker had told its suite's `every`: such a step is found not to be due when its turn comes.
function V.due(c, j)
    if j.keep == '1' or j.shard or j.merge == '1' then
        return true
    end
    local every = V.every(c, j.suite)
    return every <= 1 or tonumber(j.step) % every == 0
end

-- A job's next attempt, in its hash; returns its token. before: fields of those before it may be there.
local function attempt_write(c, key, attempts, before)
    if not c.token then
        c.token = Q.meta().token
        c.nonce = redis.sha1hex(c.worker .. ' ' .. c.request .. ' ' .. Q.seed() .. ' ' .. Q.meta().epoch):sub(1, 16)
    end
    c.token = c.token + 1
    Q.meta_set('token', c.token)
    local token = text_of(c.token) .. '.' .. c.nonce
    if before then
        call('HSET', key, 'state', 'running', 'token', token, 'attempts', text_of(attempts), 'worker', c.worker, 'started',
            NOW_TEXT, 'lease', c.lease_text, 'hb', '0', 'suspect', '')
    else
        call('HSET', key, 'state', 'running', 'token', token, 'attempts', text_of(attempts), 'worker', c.worker, 'started',
            NOW_TEXT, 'lease', c.lease_text)
    end
    return token
end

--[[
As start(), of a job that waits at place and has nothing particular to it; nil where it may have. What it changes in counts is
counted when all of the flow's jobs are started.
--]]
local function start_plain(c, h, tag, place)
    if not find(tag, '^%d+$') or V.every(c, h.suite) > 1 then
        return nil
    end
    local id = h.head .. tag .. h.rest
    local key = P .. 'job:' .. id
    local v = call('HMGET', key, 'state', 'class', 'priority', 'place', 'attempts', 'submitted', 'tasks', 'alone')
    if v[1] ~= 'queued' or v[2] ~= h.class or v[3] ~= h.band_text or v[4] ~= place or v[7] or v[8] then
        return nil
    end
    local attempts = (SMALL_OF[v[5]] or tonumber(v[5]) or 0) + 1
    local token = attempt_write(c, key, attempts, v[5])
    h.started = h.started + 1
    Q.lease(c.look, id)
    return { id, token, P .. 'msg:' .. id, text_of(attempts), '-1', '0', '0', '0', waited(v[6]) } -- As V.claim_row().
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
    j.state, j.attempts = 'running', j.attempts + 1
    j.token = attempt_write(c, j.key, j.attempts, true)
    local row = row_of(j) -- Before it is counted: a job that is set aside leaves `queued` once, and gets no lease.
    J.count(j, 'queued', -1)
    J.count(j, 'running', 1)
    J.active(j, 1)
    Q.lease(c.look, id)
    return row
end

-- Makes the popped jobs attempts, as far as they are jobs and due; returns how many.
local function start_all(c, h, popped, unbegun)
    local before = #c.rows
    local plain = unbegun and META.suites_limited == 0 and h.suite
    if plain then
        h.head, h.rest = h.name .. '/', '/' .. h.variant .. '/' .. h.suite
    end
    for i = 1, #popped do
        local tag = popped[i][1]
        local ok, row
        if plain then
            ok, row = pcall(start_plain, c, h, tag, popped[i][2])
        end
        if not ok or not row then
            ok, row = pcall(start, c, h, tag)
        end
        if not ok then
            local id = J.id_of(h.flow, tag) or h.flow
            pcall(J.set_aside, id, error_text(row, id), h.class,
                not tag:find('@') and 'queued:' .. h.class or nil)
        end
        c.rows[#c.rows + 1] = ok and row or nil
    end
    if h.started > 0 then
        J.count_started(h.class, h.run, h.started)
    end
    return #c.rows - before
end

-- The run's time moves on by what n jobs cost, the clock to where it stood; the flow goes to its new place in the line.
local function served(c, h, n)
    local run, time, clock_field = h.run, VT_FIELD[h.band], CLOCK_FIELD[h.band]
    local vt, clock, start = run[time], META[clock_field], h.start
    for _ = 1, n do
        vt, clock = moved_on(vt, clock, start, cost_of(h))
        start = max(vt, clock)
    end
    Q.meta_set(clock_field, clock)
    Q.meta_set('served', Q.meta().served + n)
    if run.moved and run.moved ~= time then -- A claim that serves a run in two bands.
        call('HSET', P .. 'run:' .. run.name, run.moved, number_text(run[run.moved]))
    end
    run[time], run.moved, run.touched = vt, time, true
    if run.paused or run.cap > 0 then
        F.settle(h.flow, h.class, h.band_text, true)
    elseif call('EXISTS', h.wait, h.begun) > 0 then
        call('ZADD', h.ready, number_text(start), h.flow)
        line_on(c, h, start)
    else
        call('ZREM', h.ready, h.flow)
        line_on(c, h, math.huge)
    end
end

-- Serves a flow of band: how many of its jobs, or 0 when the band is empty for these classes.
local function serve(c, band)
    for try = 1, 4 * FEW do
        local h = not c.empty[band] and choose(c, band)
        if not h then
            c.empty[band] = true
            return 0
        end
        local ok, popped, unbegun = pcall(pop, c, h, try > 1 and 1)
        c.heads[band][h.class] = nil
        local n = ok and start_all(c, h, popped, unbegun) or 0
        if n > 0 then
            served(c, h, n)
            return n
        end
        if not ok then -- Its turn is over: it would stand before all others for ever.
            J.set_aside(h.flow, error_text(popped, h.flow), h.class)
            served(c, h, 1)
        end
        c.lines[h.ready] = nil
        -- An empty flow leaves its ready set: trap of every fair queue. So does what is no flow.
        if not pcall(F.settle, h.flow, h.class, h.band_text) then
            pcall(call, 'ZREM', h.ready, h.flow)
        end
    end
    c.cut = true
    return 0
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
    local record = Q.mended('worker:' .. c.worker, call, 'HMGET', P .. 'worker:' .. c.worker, 'request', 'claims')
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

-- due: as L.due(), or nil where it must be looked at.
local function answer(rows, due)
    records_read(rows)
    if due == nil then
        due = L.due()
    end
    local reply = { #rows > 0 and 'jobs' or 'none', text_of(NOW), text_of(Q.meta().classes_version),
        due and text_of(math.max(due - NOW, 0)) or '-1' }
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
    local due = L.looks_and_promotions() -- No claim delays a job after that.
    local rows = {}
    c.rows, c.heads, c.every, c.open, c.lines, c.empty = rows, { [0] = {}, {}, {}, {} }, {}, {}, {}, {}
    c.lease_text, c.look = text_of(c.lease), text_of(NOW + c.lease)
    if Q.meta().paused ~= 1 then
        c.open = V.classes_open(c.classes)
    end
    while #rows < c.count and #c.open > 0 do
        local lowest_first, n = lowest_in() == 0, 0
        local ok = true
        for i = 0, 3 do
            ok, n = pcall(serve, c, lowest_first and 3 - i or i)
            if not ok or n > 0 then
                break
            end
        end
        if not ok and #rows == 0 then
            error(n, 0)
        elseif not ok then -- What was taken is told, or it would run nowhere; the next claim says what is wrong.
            c.cut = true
            break
        elseif n == 0 then
            break
        end
        if Q.meta().suites_limited > 0 then
            c.open = V.classes_open(c.classes)
        end
    end
    if #rows > 0 then
        local claims = {}
        for i, row in ipairs(rows) do
            claims[i] = row[1] .. ' ' .. row[2] .. '\n'
        end
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
    return answer(rows, due)
end

verb('claim', 'claim', function(args)
    return V.claim(V.claim_read(args, 1))
end)
