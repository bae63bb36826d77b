--[[
runs: the runs that are known, newest submit first, at most 1,000.

KEYS[1] prefix "evalq:{queue}:"

Returns JSON {"runs": [{"run", "last_submit_ms", "counts": {state: n}, "paused", "cap", "weight", "active", "flows"}]}.
Cost    O(runs).
--]]
verb('runs', 'ro', function(args)
    args_exactly(args, 0, 'none')
    local list = {}
    local rows = call('ZREVRANGE', P .. 'runs', 0, 999, 'WITHSCORES')
    for i = 1, #rows, 2 do
        local name = rows[i]
        local run, numbers, counts = F.run(name), V.counts(name), {}
        for k, state in ipairs(STATES) do
            counts[state] = tonumber(numbers[k])
        end
        list[#list + 1] = { run = name, last_submit_ms = tonumber(rows[i + 1]), counts = counts, paused = run.paused,
            cap = run.cap, weight = run.weight, active = run.active, flows = call('SCARD', P .. 'runflows:' .. name) }
    end
    return W.json({ runs = W.array(list) })
end)
