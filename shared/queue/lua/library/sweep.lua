--[[
Sweep: work that depends on time. Each heartbeat and claim does a little of it: it checks leases, queues delayed jobs that
are due, continues work that was cut into slices, and removes old records. There is no reaper process. An item that cannot
be handled is set aside.
--]]

-- Handles each item of a set of `PREFIX`.
local function per_item(ids, set, handle)
    for _, id in ipairs(ids) do
        local ok, problem = pcall(handle, id)
        if not ok and not Keys.blameless(problem) then
            Job.set_aside(id, error_text(problem, id), nil, nil)
            pcall(call, 'ZREM', PREFIX .. set, id)
        end
    end
end

-- The worker sent no heartbeat. The job is queued again and its token stays valid, or it is dead if its attempts are used up.
function Sweep.lose(job)
    local lost = (tonumber(call('HINCRBY', PREFIX .. 'job:' .. job.id, 'lost', 1)) or 1)
    Queue.bump('reclaimed', 1)
    local reason = 'lost: no heartbeat from ' .. (job.worker or '?')
    if job.cancel and job.cancel ~= '' then
        Job.finish(job, 'cancelled', job.cancel)
    elseif job.attempts >= Queue.meta().attempts_max then
        Job.finish(job, 'dead', reason)
    elseif lost == 1 then
        Job.queue(job, { 'reason', short_text(reason), 'suspect', '' })
    else
        local due = NOW + Job.backoff(job.id, lost - 1, 1000)
        Job.place(job, 'delayed', due, { 'reason', short_text(reason), 'suspect', '', 'due', due })
    end
end

function Sweep.check_lease(id)
    local job = Job.load(id)
    if not job or job.state ~= 'running' or not Job.is_sane(job) then
        call('ZREM', PREFIX .. 'leases', id)
        if job and Job.is_sane(job) then
            Job.active(job, -1)
        end
        Queue.add_bad(id, 'a lease without a running job')
        return
    end
    local lease = tonumber(job.lease) or Queue.meta().lease_ms
    local beats = job.hb or '0'
    if not job.suspect or job.suspect == '' then
        call('HSET', PREFIX .. 'job:' .. id, 'suspect', beats)
        call('ZADD', PREFIX .. 'leases', NOW + math.floor(lease * 2 / 5), id) -- Two heartbeats. A lease is five.
        Queue.bump('suspected', 1)
    elseif job.suspect ~= beats then
        call('HSET', PREFIX .. 'job:' .. id, 'suspect', '')
        call('ZADD', PREFIX .. 'leases', NOW + lease, id)
    else
        Sweep.lose(job)
    end
end

function Sweep.promote(id)
    local job = Job.load(id)
    if not job or job.state ~= 'delayed' or not Job.is_sane(job) then
        call('ZREM', PREFIX .. 'delayed', id)
        Queue.add_bad(id, 'a due time without a delayed job')
        return
    end
    local flow = call('HMGET', PREFIX .. 'flow:' .. job.flow, 'policy', 'top')
    local top = tonumber(flow[2])
    if flow[1] == 'latest' and top and tonumber(job.place) < top and job.keep ~= '1' and job.merge ~= '1' and not job.shard then
        Job.finish(job, 'skipped', 'superseded by step ' .. text_of(top % SPAN))
        return
    end
    Job.queue(job, { 'due', '' })
    if flow[1] == 'backfill' and not job.shard and job.merge ~= '1' then
        Backfill.note(job.flow, job.class, job.priority, tonumber(job.place))
    end
end

--[[
After a clock was set back, scores lie far in the future. Reduces them to the longest wait that the job can have. Checks the
farthest and a few random ones, so that long leases do not hide short ones.
--]]
local function pull_back(set, usual_ms, legal)
    local far = call('ZRANGE', PREFIX .. set, '+inf', '(' .. text_of(NOW + usual_ms), 'BYSCORE', 'REV', 'LIMIT', 0, FEW)
    for _, id in ipairs(#far == FEW and call('ZRANDMEMBER', PREFIX .. set, FEW / 2) or {}) do
        far[#far + 1] = id
    end
    for _, id in ipairs(far) do
        local ok, wait = pcall(legal, id)
        call('ZADD', PREFIX .. set, 'LT', 'XX', NOW + (ok and wait or usual_ms), id)
    end
end

local function lease_legal(id)
    local lease = tonumber(call('HGET', PREFIX .. 'job:' .. id, 'lease')) or LEASE_MS_MAX
    return math.min(math.max(lease, 1), LEASE_MS_MAX)
end

-- A job with an attempt waits as long as `fail` said; another one waits as long as its submit said.
local function delay_legal(id)
    local job = call('HMGET', PREFIX .. 'job:' .. id, 'started', 'last', 'due', 'submitted')
    if job[1] then
        return math.min(tonumber((job[2] or ''):match(' delayed (%d+)$')) or RETRY_MS_MAX, RETRY_MS_MAX)
    end
    local due, submitted = tonumber(job[3]), tonumber(job[4])
    return math.min(due and submitted and math.max(due - submitted, 0) or DELAY_MS_MAX, DELAY_MS_MAX)
end

-- Returns when the next delayed job is due, or false if there is none.
function Sweep.next_due()
    local rows = Keys.tried(call, 'ZRANGE', PREFIX .. 'delayed', '0', '0', 'WITHSCORES')
    return rows and tonumber(rows[2]) or false
end

-- Checks leases and queues due jobs. Returns Sweep.next_due() afterwards, or nil if it is not known.
function Sweep.leases_and_delays()
    per_item(Queue.repairing('leases', call, 'ZRANGEBYSCORE', PREFIX .. 'leases', '-inf', NOW_TEXT, 'LIMIT', '0', text_of(FEW)),
        'leases',
        Sweep.check_lease)
    local due = Sweep.next_due()
    if due and due <= NOW then
        per_item(call('ZRANGEBYSCORE', PREFIX .. 'delayed', '-inf', NOW_TEXT, 'LIMIT', '0', text_of(FEW)), 'delayed', Sweep.promote)
        return nil
    end
    return due
end

-- Removes the record of an ended job. Its step, generation, fingerprint and end stay in its flow's ledger. An entry that was
-- set aside may be no job at all. A job that runs again, because a worker adopted it, stays.
function Sweep.remove_record(id)
    local sane, job = pcall(Job.load, id)
    if sane and job and OPEN[job.state] then
        return
    elseif sane and job and ENDED[job.state] then
        local latest = tonumber(call('HGET', PREFIX .. 'gens:' .. job.flow, job.step)) or 1
        if job.gen == latest then
            call('HSET', PREFIX .. 'ledger:' .. job.flow, job.step, job.gen .. ' ' .. (job.fingerprint or '') .. ' ' .. job.state)
            call('HSET', PREFIX .. 'flow:' .. job.flow, 'ledger', 1)
        end
    end
    call('UNLINK', PREFIX .. 'job:' .. id, PREFIX .. 'msg:' .. id, PREFIX .. 'log:' .. id, PREFIX .. 'res:' .. id, PREFIX ..
        'part:' .. id)
end

-- How many rows of a run's index to check for each removed record: more than a job of a few tasks has.
local INDEX_ROWS = 16

-- Removes ended jobs and jobs that were set aside, if they are too old or too many. At most budget; returns how many.
function Sweep.retain(budget)
    local meta = Queue.meta()
    local removed, kept = 0, 0
    for state in pairs(ENDED) do
        kept = kept + Queue.repairing('ended:' .. state, call, 'ZCARD', PREFIX .. 'ended:' .. state)
    end
    for _, state in ipairs({ 'done', 'skipped', 'cancelled', 'dead', 'bad' }) do
        local key, wanted = PREFIX .. 'ended:' .. state, state == 'dead' or state == 'bad'
        local age = wanted and meta.retain_dead_ms or meta.retain_ms
        local over = wanted and 0 or math.max(kept - meta.retain_count, 0)
        local ids = Queue.repairing('ended:' .. state, call, 'ZRANGE', key, 0, budget - removed - 1, 'WITHSCORES')
        for i = 1, #ids, 2 do
            if removed >= budget or (tonumber(ids[i + 1]) > NOW - age and over <= 0) then
                break
            end
            pcall(Sweep.remove_record, ids[i])
            call('ZREM', key, ids[i])
            Keys.tried(Results.index_trim, ids[i]:match('^[^/]*'), INDEX_ROWS)
            removed, kept, over = removed + 1, kept - 1, over - 1
        end
        if removed >= budget then
            break
        end
    end
    return removed
end

-- Removes all keys of a flow, 90 days after its last submit or when its run is forgotten. It must have no open job.
function Sweep.forget_flow(flow)
    local run, variant_suite = flow:match('^([^/]+)/(.+)$')
    local suite = variant_suite:match('([^/]+)$')
    for _, class in ipairs(Flow.suite_classes(suite)) do
        for band = 0, 3 do
            call('UNLINK', PREFIX .. 'gaps:' .. flow .. ':' .. class .. ':' .. band)
        end
    end
    call('UNLINK', PREFIX .. 'flow:' .. flow, PREFIX .. 'ledger:' .. flow, PREFIX .. 'gens:' .. flow, PREFIX .. 'taken:' .. flow)
    call('ZREM', PREFIX .. 'flows', flow)
    call('ZREM', PREFIX .. 'supersede', flow)
    call('SREM', PREFIX .. 'runflows:' .. run, flow)
    if call('SCARD', PREFIX .. 'runflows:' .. run) == 0 then
        RUNS[run], RUN_BUMPS[run] = nil, nil
        call('ZREM', PREFIX .. 'runs', run)
        call('SREM', PREFIX .. 'unpark', run)
        call('UNLINK', PREFIX .. 'run:' .. run, PREFIX .. 'index:' .. run, PREFIX .. 'best:' .. run, PREFIX .. 'parked:' .. run)
    end
end

local function flows_expire(budget)
    local old = call('ZRANGEBYSCORE', PREFIX .. 'flows', '-inf', text_of(NOW - Queue.meta().flow_retain_ms), 'LIMIT', 0, budget)
    for _, flow in ipairs(old) do
        if not Job.id_of(flow, '0') then
            call('ZREM', PREFIX .. 'flows', flow)
        elseif call('EXISTS', PREFIX .. 'open:' .. flow, PREFIX .. 'openkeep:' .. flow) > 0 then
            call('ZADD', PREFIX .. 'flows', NOW, flow)
        else
            Sweep.forget_flow(flow)
        end
    end
    return #old
end

-- Removes everything that is too old. A key of another type does not stop the rest. Also the body of gc.
function Sweep.retention(budget)
    local removed = Sweep.retain(budget)
    Keys.tried(flows_expire, math.min(budget, FEW))
    -- A random run, because rows behind one that was kept longer became free without a trim.
    local run = Keys.tried(call, 'ZRANDMEMBER', PREFIX .. 'runs')
    local trimmed = run and Keys.tried(Results.index_trim, run, SLICE) or 0
    Queue.repairing('workers', call, 'ZREMRANGEBYSCORE', PREFIX .. 'workers', '-inf', text_of(NOW - DAY_MS))
    Keys.tried(Ticket.retain)
    Results.cap()
    return removed > 0 and removed or trimmed
end

local function supersede_on()
    local flow = call('ZRANGE', PREFIX .. 'supersede', 0, 0, 'WITHSCORES')
    if flow[1] then
        Flow.supersede(flow[1], tonumber(flow[2]))
    end
end

local function unpark_on()
    local run = call('SRANDMEMBER', PREFIX .. 'unpark')
    if run then
        Flow.unpark(run)
    end
end

-- Runs once per heartbeat.
function Sweep.slow_work()
    pull_back('leases', Queue.meta().lease_ms, lease_legal)
    Keys.tried(pull_back, 'delayed', FAR_MS, delay_legal)
    Keys.tried(supersede_on)
    Keys.tried(unpark_on)
    Sweep.retention(4)
end
