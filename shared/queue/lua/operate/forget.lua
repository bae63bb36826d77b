--[[
forget: everything of a run goes: jobs, results, flows. Called again until nothing is left.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] run    name

Returns what is left (0: nothing), or "running" when jobs of it run: nothing was done.
Cost    at most 100 jobs a call.
--]]
-- Open jobs of the run, at most budget: out of their places, without an entry.
local function open_remove(flow, budget)
    local removed = 0
    for _, set in ipairs({ 'open:', 'openkeep:' }) do
        for _, tag in ipairs(call('ZRANGEBYSCORE', P .. set .. flow, '-inf', '+inf', 'LIMIT', 0, budget - removed)) do
            local id = J.id_of(flow, tag)
            local ok, j = pcall(J.load, id or '')
            if ok and j and OPEN[j.state] and J.sane(j) then
                J.leave(j)
                J.shards_drop(j)
                F.settle(flow, j.class, j.priority)
                Q.bump('forgotten', 1)
            end
            if id then
                call('UNLINK', P .. 'job:' .. id, P .. 'msg:' .. id, P .. 'log:' .. id, P .. 'res:' .. id)
            end
            call('ZREM', P .. set .. flow, tag)
            removed = removed + 1
        end
    end
    return removed
end

-- Jobs of the run that ended or were set aside, by its index of ends.
local function ended_remove(run, budget)
    local rows = call('LRANGE', P .. 'index:' .. run, 0, budget - 1)
    for _, row in ipairs(rows) do
        local id = row:match('^%d+ ([^#]+)#$')
        local known, now = pcall(call, 'HGET', P .. 'job:' .. (id or ''), 'state')
        if id and not (known and OPEN[now]) then -- One that was retried goes with its flow.
            for state in pairs(ENDED) do
                call('ZREM', P .. 'ended:' .. state, id)
            end
            call('ZREM', P .. 'ended:bad', id)
            call('UNLINK', P .. 'job:' .. id, P .. 'msg:' .. id, P .. 'log:' .. id, P .. 'res:' .. id, P .. 'part:' .. id)
        end
    end
    if #rows > 0 then
        call('LTRIM', P .. 'index:' .. run, #rows, -1)
    end
    return #rows
end

verb('forget', 'drain', function(args)
    args_exactly(args, 1, 'run')
    local run = args[1]
    if not name_ok(run, 64) then
        refuse('run must be 1 to 64 of [A-Za-z0-9._-]')
    end
    local counts = V.counts(run)
    if counts[3] ~= '0' or F.run(run).active > 0 then
        return 'running'
    end
    local budget, flows = SLICE, call('SRANDMEMBER', P .. 'runflows:' .. run, SLICE)
    for _, flow in ipairs(flows) do
        budget = budget - open_remove(flow, budget)
        if budget <= 0 then
            break
        end
    end
    budget = budget > 0 and budget - ended_remove(run, budget) or 0
    local left = call('LLEN', P .. 'index:' .. run)
    if budget > 0 and left == 0 then
        for _, state in ipairs(STATES) do
            if ENDED[state] then
                local count = W.number(call('HGET', P .. 'run:' .. run, 'n:' .. state))
                Q.bump(state, -count)
                Q.bump('forgotten', count)
                F.run_bump(run, 'n:' .. state, -count)
            end
        end
        for _, flow in ipairs(flows) do
            L.flow_forget(flow)
        end
        left = call('SCARD', P .. 'runflows:' .. run)
        if left == 0 then
            RUNS[run], RUN_BUMPS[run] = nil, nil
            call('UNLINK', P .. 'run:' .. run, P .. 'best:' .. run, P .. 'parked:' .. run)
        end
    else
        left = math.max(left, 1)
    end
    return text_of(left)
end)
