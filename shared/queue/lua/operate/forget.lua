--[[
forget: removes a slice of a run: jobs, results, flows. Call it again until nothing is left.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] run    name

Returns what is left (0: nothing), or "running" when jobs of it run: nothing was done.
Cost    at most 100 jobs a call.
--]]
-- Removes at most budget open jobs of the run from their places, without an entry in the stream.
local function open_remove(flow, budget)
    local removed = 0
    for _, set in ipairs({ 'open:', 'openkeep:' }) do
        for _, tag in ipairs(call('ZRANGEBYSCORE', PREFIX .. set .. flow, '-inf', '+inf', 'LIMIT', 0, budget - removed)) do
            local id = Job.id_of(flow, tag)
            local ok, job = pcall(Job.load, id or '')
            if ok and job and OPEN[job.state] and Job.is_sane(job) then
                Job.leave_place(job)
                Job.drop_shards(job)
                Flow.settle(flow, job.class, job.priority)
                Queue.bump('forgotten', 1)
            end
            if id then
                call('UNLINK', PREFIX .. 'job:' .. id, PREFIX .. 'msg:' .. id, PREFIX .. 'log:' .. id, PREFIX .. 'res:' .. id)
            end
            call('ZREM', PREFIX .. set .. flow, tag)
            removed = removed + 1
        end
    end
    return removed
end

-- Removes jobs of the run that ended or were set aside, which its index names.
local function ended_remove(run, budget)
    local rows = call('LRANGE', PREFIX .. 'index:' .. run, 0, budget - 1)
    for _, row in ipairs(rows) do
        local id = row:match('^%d+ ([^#]+)#$')
        local known, now = pcall(call, 'HGET', PREFIX .. 'job:' .. (id or ''), 'state')
        if id and not (known and OPEN[now]) then -- One that was retried goes with its flow.
            for state in pairs(ENDED) do
                call('ZREM', PREFIX .. 'ended:' .. state, id)
            end
            call('ZREM', PREFIX .. 'ended:bad', id)
            call('UNLINK', PREFIX .. 'job:' .. id, PREFIX .. 'msg:' .. id, PREFIX .. 'log:' .. id, PREFIX .. 'res:' .. id,
                PREFIX .. 'part:' .. id)
        end
    end
    if #rows > 0 then
        call('LTRIM', PREFIX .. 'index:' .. run, #rows, -1)
    end
    return #rows
end

verb('forget', 'drain', function(args)
    args_exactly(args, 1, 'run')
    local run = args[1]
    if not name_ok(run, 64) then
        refuse('run must be 1 to 64 of [A-Za-z0-9._-]')
    end
    local counts = View.counts(run)
    if counts[3] ~= '0' or Flow.run(run).active > 0 then
        return 'running'
    end
    local budget, flows = SLICE, call('SRANDMEMBER', PREFIX .. 'runflows:' .. run, SLICE)
    for _, flow in ipairs(flows) do
        budget = budget - open_remove(flow, budget)
        if budget <= 0 then
            break
        end
    end
    budget = budget > 0 and budget - ended_remove(run, budget) or 0
    local left = call('LLEN', PREFIX .. 'index:' .. run)
    if budget > 0 and left == 0 then
        for _, state in ipairs(STATES) do
            if ENDED[state] then
                local count = View.number(call('HGET', PREFIX .. 'run:' .. run, 'n:' .. state))
                Queue.bump(state, -count)
                Queue.bump('forgotten', count)
                Flow.bump_run(run, 'n:' .. state, -count)
            end
        end
        for _, flow in ipairs(flows) do
            Sweep.forget_flow(flow)
        end
        left = call('SCARD', PREFIX .. 'runflows:' .. run)
        if left == 0 then
            RUNS[run], RUN_BUMPS[run] = nil, nil
            call('UNLINK', PREFIX .. 'run:' .. run, PREFIX .. 'best:' .. run, PREFIX .. 'parked:' .. run)
        end
    else
        left = math.max(left, 1)
    end
    return text_of(left)
end)
