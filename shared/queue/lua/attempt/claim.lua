--[[
claim: gives the next jobs that fit this worker's slots to one attempt each.

KEYS[1] prefix    "evalq:{queue}:", fixes the hash slot of every key derived from it
ARGV[1] worker    id of the claiming process, at most 64 printable bytes
ARGV[2] request   at most 64 bytes, new for each claim; the same again returns those still valid (lost reply)
ARGV[3] lease_ms  1 to 3600000: how long the attempt may be silent
ARGV[4] count     1 to 64: how many jobs at most
ARGV[5] nclasses  0 to 64
ARGV[6...] class  numbers of the classes that fit
ARGV[...] nprefer, id...  optional, 0 to 64: jobs to take first within the bound of library/prefer.lua

Returns {"jobs" | "none", now, classes_version, due_ms, {id, token, record, attempt, shard, shards, merge, alone,
        queued_ms, task_done...}...}.
Holds   before and after the call, an unfinished job is in exactly one of wait, begun, delayed, leases and sharded.
Cost    O(C + log n) a job, C classes named, and less where jobs of one flow come one after another; O(log n) more for each
        preferred id; at most 8 looks and 8 promotions besides.
--]]

-- Reads the arguments nclasses class..., which begin at args[at]. more: others may follow. Returns where they begin, too.
function Claim.read_classes(args, at, more)
    local classes = {}
    local n = integer_arg(args, at, 0, CLASSES_MAX, 'nclasses')
    if #args < at + n or (#args > at + n and not more) then
        refuse('expected ' .. n .. ' classes, got ' .. (#args - at))
    end
    for i = 1, n do
        classes[i] = text_of(integer_arg(args, at + i, 1, CLASSES_MAX, 'class'))
    end
    return classes, at + n + 1
end

-- Reads and checks the arguments of a claim, which begin at args[at].
function Claim.read(args, at)
    local claim = { worker = label_arg(args, at, 64, 'worker'), request = label_arg(args, at + 1, 64, 'request'),
        lease = integer_arg(args, at + 2, 1, LEASE_MS_MAX, 'lease_ms'), count = integer_arg(args, at + 3, 1, 64, 'count') }
    claim.classes, at = Claim.read_classes(args, at + 4, true)
    claim.prefer = Prefer.read(args, at)
    return claim
end

--[[
Reads the first flows of a ready set, as many as the call may need. at: the row to serve next. back: the lowest start among
the flows that this call put back; when it is reached, the line is read again.
--]]
local function line_read(claim, ready)
    local rows = call('ZRANGE', ready, '0', text_of(claim.count - #claim.rows), 'WITHSCORES')
    local line = { rows = rows, at = 1, back = math.huge }
    claim.lines[ready] = line
    return line
end

-- The virtual start of the row at `at`, or math.huge if there is no such row.
local function start_at(line, at)
    local text = line.rows[at + 1]
    return text and (SMALL_OF[text] or tonumber(text)) or math.huge
end

-- Moves on in the line after its first flow was served and put back with the given start.
local function line_on(claim, head, start)
    local line = claim.lines[head.ready]
    if line then -- A preferred flow was not the first of its line, which is read again.
        line.at, line.back = line.at + 2, math.min(line.back, start)
    end
end

-- What is needed to serve a flow. next: the start of the flow behind it in its line.
function Claim.head(flow, name, variant, suite, class, band, run, start, next)
    local ready = class .. ':' .. SMALL[band]
    local suffix = flow .. ':' .. ready
    return { flow = flow, start = start, run = run, class = class, band = band, band_text = SMALL[band],
        ready = PREFIX .. 'ready:' .. ready, wait = PREFIX .. 'wait:' .. suffix, begun = PREFIX .. 'begun:' .. suffix,
        name = name, variant = variant, suite = suite, next = next, preferred = false, cost = false, head = false,
        rest = false, started = 0 }
end

-- Finds the flow to serve next in one class and band. Nil: there is none.
local function find_head(claim, class, band)
    local ready = PREFIX .. 'ready:' .. class .. ':' .. SMALL[band]
    for _ = 1, 4 * FEW do
        local line = claim.lines[ready]
        if not line or start_at(line, line.at) >= line.back or not line.rows[line.at] then
            line = line_read(claim, ready)
        end
        local flow, start = line.rows[line.at], start_at(line, line.at)
        if not flow then
            return nil
        end
        local name, variant, suite = match(flow, '^([^/]+)/([^/]+)/([^/]+)$')
        if suite then
            Claim.every(claim, suite) -- First: if it cannot be read, nothing was taken.
        end
        local run = Flow.run(name or match(flow, '^[^/]+') or '', band)
        if Flow.is_blocked(run) then
            claim.lines[ready] = nil
            Flow.settle(flow, class, SMALL[band])
        elseif run[VT_FIELD[band]] > start then
            claim.lines[ready] = nil
            call('ZADD', ready, 'XX', number_text(run[VT_FIELD[band]]), flow)
        else
            return Claim.head(flow, name, variant, suite, class, band, run, start,
                math.min(start_at(line, line.at + 2), line.back))
        end
    end
    claim.cut = true
    return nil
end

-- Chooses the flow with the lowest start over all named classes. Keeps the heads for the next jobs of the call.
local function choose(claim, band)
    local best
    local heads = claim.heads[band]
    for i = 1, #claim.open do
        local class = claim.open[i]
        local entry = heads[class]
        if entry == nil or (entry and (entry.run[VT_FIELD[band]] > entry.start or Flow.is_blocked(entry.run))) then
            local ok, found = pcall(find_head, claim, class, band)
            if not ok and Keys.blameless(found) then
                error(found, 0)
            elseif not ok then -- It is not a flow. It would stay first for ever.
                local gone, row = pcall(call, 'ZPOPMIN', PREFIX .. 'ready:' .. class .. ':' .. band)
                Queue.add_bad('ready:' .. class .. ':' .. band, error_text(found, gone and row[1]), gone and row[1] or '')
                claim.cut = true
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

local function cost_of(head)
    head.cost = head.cost or (head.suite and Flow.cost(head.suite) or 1) * 100 / max(head.run.weight, 1)
    return head.cost
end

-- Returns the run's virtual time and the band's clock after one job was served.
local function moved_on(vt, clock, start, cost)
    vt = max(vt, start)
    return vt + cost, max(clock, vt)
end

-- Whether only this band has jobs for these classes. Then the sixteenth claim is like the others.
local function one_band(claim, band)
    if claim.one_band == nil then
        local keys = {}
        for i = 1, #claim.open do
            for other = 0, 3 do
                keys[#keys + 1] = other ~= band and PREFIX .. 'ready:' .. claim.open[i] .. ':' .. SMALL[other] or nil
            end
        end
        claim.one_band = call('EXISTS', unpack(keys)) == 0
    end
    return claim.one_band
end

-- How many claims come before the next one that serves the lowest band first. 0: this one does.
local function lowest_in()
    return 15 - Queue.meta().served % 16
end

-- How many jobs of this flow come next, before it is another flow's or band's turn.
local function turns(claim, head)
    local run, most, other = head.run, claim.count - #claim.rows, head.next
    local vt, clock, start, cost = run[VT_FIELD[head.band]], META[CLOCK_FIELD[head.band]], head.start, cost_of(head)
    if most == 1 or run.paused or run.cap > 0 or META.suites_limited > 0 or not head.suite or
        max(vt, start) + cost >= other then
        return 1
    end
    if not one_band(claim, head.band) then
        most = math.min(most, max(lowest_in(), 1))
    end
    for i = 1, #claim.open do
        local entry = claim.heads[head.band][claim.open[i]]
        if entry and entry ~= head then
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

-- Pops the flow's next jobs, by its policy. Returns tag and place of each, and whether they came from `wait`.
local function pop(claim, head, most)
    local policy = call('HGET', PREFIX .. 'flow:' .. head.flow, 'policy')
    if policy ~= 'backfill' and policy ~= 'latest' then
        local popped = call('ZMPOP', '2', head.begun, head.wait, 'MIN', 'COUNT', text_of(most or turns(claim, head)))
        return popped and popped[2] or {}, popped and popped[1] == head.wait
    end
    local tag = call('ZPOPMIN', head.begun)[1]
    if not tag and policy == 'backfill' then
        tag = Backfill.pop(head.flow, head.class, head.band_text)
    elseif not tag then
        tag = call('ZPOPMAX', head.wait)[1]
    end
    return tag and { { tag } } or {}
end

-- Milliseconds since a job's submit, as text.
local function waited(submitted)
    return text_of(max(NOW - (submitted and tonumber(submitted) or NOW), 0))
end

-- One attempt in the reply of a claim.
function Claim.row(job, record, tasks)
    local row = { job.id, job.token, record or '', text_of(job.attempts), job.shard and text_of(job.shard) or '-1',
        job.shard and job.shards or '0', job.merge == '1' and '1' or '0', job.alone == '1' and '1' or '0', waited(job.submitted) }
    if tasks then
        for _, task in ipairs(tasks) do
            row[#row + 1] = task
        end
    end
    return row
end

local function row_of(job)
    local tasks = job.tasks and (tonumber(job.tasks) or 0) > 0 and call('HKEYS', PREFIX .. 'res:' .. job.id) or nil
    return Claim.row(job, PREFIX .. 'msg:' .. (job.parent or job.id), tasks)
end

-- Each row has the key of its record instead of the record. Reads all records in one call.
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

function Claim.every(claim, suite)
    local every = claim.every[suite]
    if not every then
        every = tonumber(call('HGET', PREFIX .. 'class', 'every:' .. suite)) or 1
        claim.every[suite] = every
    end
    return every
end

-- Whether the step is due by its suite's `every`. A job submitted before any worker had registered the suite may not be.
function Claim.is_due(claim, job)
    if job.keep == '1' or job.shard or job.merge == '1' then
        return true
    end
    local every = Claim.every(claim, job.suite)
    return every <= 1 or tonumber(job.step) % every == 0
end

-- Writes a job's next attempt into its hash and returns the token. before: the job had an attempt, whose fields must be
-- cleared.
local function attempt_write(claim, key, attempts, before)
    if not claim.token then
        claim.token = Queue.meta().token
        claim.nonce = redis.sha1hex(claim.worker .. ' ' .. claim.request .. ' ' .. Queue.seed() .. ' ' ..
            Queue.meta().epoch):sub(1, 16)
    end
    claim.token = claim.token + 1
    Queue.set_meta('token', claim.token)
    local token = text_of(claim.token) .. '.' .. claim.nonce
    if before then
        call('HSET', key, 'state', 'running', 'token', token, 'attempts', text_of(attempts), 'worker', claim.worker, 'started',
            NOW_TEXT, 'lease', claim.lease_text, 'hb', '0', 'suspect', '')
    else
        call('HSET', key, 'state', 'running', 'token', token, 'attempts', text_of(attempts), 'worker', claim.worker, 'started',
            NOW_TEXT, 'lease', claim.lease_text)
    end
    return token
end

--[[
Starts a job in the common case, without loading it whole. Returns nil if the job may be special; then start() does it.
The caller adjusts the counts once for all jobs of the flow.
--]]
local function start_plain(claim, head, tag, place)
    if not find(tag, '^%d+$') or Claim.every(claim, head.suite) > 1 then
        return nil
    end
    local id = head.head .. tag .. head.rest
    local key = PREFIX .. 'job:' .. id
    local values = call('HMGET', key, 'state', 'class', 'priority', 'place', 'attempts', 'submitted', 'tasks', 'alone')
    if values[1] ~= 'queued' or values[2] ~= head.class or values[3] ~= head.band_text or values[4] ~= place or values[7] or
            values[8] then
        return nil
    end
    local attempts = (SMALL_OF[values[5]] or tonumber(values[5]) or 0) + 1
    local token = attempt_write(claim, key, attempts, values[5])
    head.started = head.started + 1
    Queue.note_lease(claim.look, id)
    return { id, token, PREFIX .. 'msg:' .. id, text_of(attempts), '-1', '0', '0', '0', waited(values[6]) } -- As Claim.row().
end

-- Starts one popped job. Nil: it was not due and is skipped.
local function start(claim, head, tag)
    local job = Job.parse_tag(head, tag)
    local id = job and job.id
    job = job and Job.load(id, FIELDS_CLAIM, job)
    if not job or job.state ~= 'queued' or not Job.is_sane(job) or job.class ~= head.class or job.priority ~= head.band_text then
        error('EVQ_CORRUPT a waiting entry without a queued job of its class and band', 0)
    end
    if not Claim.is_due(claim, job) then
        Job.finish(job, 'skipped', 'every: step ' .. job.step .. ' is not due')
        return nil
    end
    job.state, job.attempts = 'running', job.attempts + 1
    job.token = attempt_write(claim, job.key, job.attempts, true)
    local row = row_of(job) -- First: if this fails, the job is set aside, which counts it and gives no lease.
    Job.count(job, 'queued', -1)
    Job.count(job, 'running', 1)
    Job.active(job, 1)
    Queue.note_lease(claim.look, id)
    return row
end

-- Starts the popped jobs. Returns how many were valid and due.
local function start_all(claim, head, popped, unbegun)
    local before = #claim.rows
    local plain = unbegun and META.suites_limited == 0 and head.suite
    if plain then
        head.head, head.rest = head.name .. '/', '/' .. head.variant .. '/' .. head.suite
    end
    for i = 1, #popped do
        local tag = popped[i][1]
        local ok, row
        if plain then
            ok, row = pcall(start_plain, claim, head, tag, popped[i][2])
        end
        if not ok or not row then
            ok, row = pcall(start, claim, head, tag)
        end
        if not ok then
            local id = Job.id_of(head.flow, tag) or head.flow
            pcall(Job.set_aside, id, error_text(row, id), head.class,
                not tag:find('@') and 'queued:' .. head.class or nil)
        end
        claim.rows[#claim.rows + 1] = ok and row or nil
    end
    if head.started > 0 then
        Job.count_started(head.class, head.run, head.started)
    end
    return #claim.rows - before
end

-- After n jobs were served: moves the run's virtual time and the band's clock, and puts the flow back into its line.
local function served(claim, head, n)
    local run, time, clock_field = head.run, VT_FIELD[head.band], CLOCK_FIELD[head.band]
    local vt, clock, start = run[time], META[clock_field], head.start
    for _ = 1, n do
        vt, clock = moved_on(vt, clock, start, cost_of(head))
        start = max(vt, clock)
    end
    if not head.preferred then -- Otherwise a run that comes back would wait for the run that was taken out of turn.
        Queue.set_meta(clock_field, clock)
    end
    Queue.set_meta('served', Queue.meta().served + n)
    if run.moved and run.moved ~= time then -- This claim serves the run in two bands.
        call('HSET', PREFIX .. 'run:' .. run.name, run.moved, number_text(run[run.moved]))
    end
    run[time], run.moved, run.touched = vt, time, true
    if run.paused or run.cap > 0 then
        Flow.settle(head.flow, head.class, head.band_text, true)
    elseif call('EXISTS', head.wait, head.begun) > 0 then
        call('ZADD', head.ready, number_text(start), head.flow)
        line_on(claim, head, start)
    else
        call('ZREM', head.ready, head.flow)
        line_on(claim, head, math.huge)
    end
end

-- Serves one flow of the band. Returns how many jobs it started; 0: the band is empty for these classes.
local function serve(claim, band)
    for try = 1, 4 * FEW do
        local head = not claim.empty[band] and choose(claim, band)
        if not head then
            claim.empty[band] = true
            return 0
        end
        local ok, popped, unbegun = true, Prefer.pop(claim, band, head), true
        if popped then
            head = popped.head
        else
            ok, popped, unbegun = pcall(pop, claim, head, try > 1 and 1)
        end
        claim.heads[band][head.class] = nil
        local n = ok and start_all(claim, head, popped, unbegun) or 0
        if n > 0 then
            served(claim, head, n)
            return n
        end
        if not ok then -- It cannot be served. It would stay first for ever.
            Job.set_aside(head.flow, error_text(popped, head.flow), head.class)
            served(claim, head, 1)
        end
        claim.lines[head.ready] = nil
        -- An empty flow must leave its ready set, and so must a member that is not a flow.
        if not pcall(Flow.settle, head.flow, head.class, head.band_text) then
            pcall(call, 'ZREM', head.ready, head.flow)
        end
    end
    claim.cut = true
    return 0
end

-- The classes whose suites are neither paused nor at their cap.
function Claim.open_classes(classes)
    local open = {}
    local reasons = #classes > 0 and call('HMGET', PREFIX .. 'block', unpack(classes)) or {}
    for i, class in ipairs(classes) do
        if not reasons[i] then
            open[#open + 1] = class
        end
    end
    return open
end

-- If the request was answered before: the attempts of that answer that are still valid.
local function repeated(claim)
    local name = 'worker:' .. claim.worker
    local record = Queue.repairing(name, call, 'HMGET', PREFIX .. name, 'request', 'claims')
    if record[1] ~= claim.request then
        return nil
    end
    local rows = {}
    for id, token in (record[2] or ''):gmatch('(%S+) (%S+)\n') do
        local ok, job = pcall(Job.load, id)
        if ok and job and job.token == token and OPEN[job.state] then
            rows[#rows + 1] = row_of(job)
        end
    end
    return rows
end

-- due: the result of Sweep.next_due(), or nil if it is not known.
local function answer(rows, due)
    records_read(rows)
    if due == nil then
        due = Sweep.next_due()
    end
    local reply = { #rows > 0 and 'jobs' or 'none', text_of(NOW), text_of(Queue.meta().classes_version),
        due and text_of(math.max(due - NOW, 0)) or '-1' }
    for _, row in ipairs(rows) do
        reply[#reply + 1] = row
    end
    return reply
end

-- Sets the wake markers of classes that have more jobs again, because this claim may have consumed one.
local function wake_on(claim)
    for _, class in ipairs(claim.open) do
        local ready = PREFIX .. 'ready:' .. class
        if call('EXISTS', ready .. ':0', ready .. ':1', ready .. ':2', ready .. ':3') > 0 then
            Flow.wake(class)
        end
    end
end

function Claim.run(claim)
    local before = repeated(claim)
    if before then
        return answer(before)
    end
    local due = Sweep.leases_and_delays() -- Nothing in this call delays a job afterwards.
    local rows = {}
    claim.rows, claim.heads, claim.every, claim.open, claim.lines, claim.empty = rows, { [0] = {}, {}, {}, {} }, {}, {}, {}, {}
    claim.lease_text, claim.look = text_of(claim.lease), text_of(NOW + claim.lease)
    if Queue.meta().paused ~= 1 then
        claim.open = Claim.open_classes(claim.classes)
    end
    while #rows < claim.count and #claim.open > 0 do
        local lowest_first, n = lowest_in() == 0, 0
        local ok = true
        for i = 0, 3 do
            ok, n = pcall(serve, claim, lowest_first and 3 - i or i)
            if not ok or n > 0 then
                break
            end
        end
        if not ok and #rows == 0 then
            error(n, 0)
        elseif not ok then -- The reply must name the attempts made so far. The next claim reports the error.
            claim.cut = true
            break
        elseif n == 0 then
            break
        end
        if Queue.meta().suites_limited > 0 then
            claim.open = Claim.open_classes(claim.classes)
        end
    end
    if #rows > 0 then
        local claims = {}
        for i, row in ipairs(rows) do
            claims[i] = row[1] .. ' ' .. row[2] .. '\n'
        end
        call('HSET', PREFIX .. 'worker:' .. claim.worker, 'request', claim.request, 'claims', table.concat(claims))
        call('PEXPIRE', PREFIX .. 'worker:' .. claim.worker, '86400000')
        if Queue.meta().served % 64 < #rows then
            Sweep.retention(4)
        end
    end
    if Queue.meta().idle_until > NOW then
        Claim.note_idle(claim, #rows)
    end
    if #rows == claim.count or claim.cut then -- cut: invalid entries used up this call, and valid jobs may wait behind them.
        wake_on(claim)
    end
    return answer(rows, due)
end

verb('claim', 'claim', function(args)
    return Claim.run(Claim.read(args, 1))
end)
