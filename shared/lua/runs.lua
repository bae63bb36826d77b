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
        local name, counts = rows[i], {}
        local run = Q.keys.tried(F.run, name) or { paused = false, cap = 0, weight = 100, active = 0 }
        local numbers = Q.keys.tried(V.counts, name) or {}
        for k, state in ipairs(STATES) do
            counts[state] = tonumber(numbers[k]) or 0
        end
        list[#list + 1] = { run = name, last_submit_ms = tonumber(rows[i + 1]), counts = counts, paused = run.paused,
            cap = run.cap, weight = run.weight, active = run.active, flows = Q.keys.tried(call, 'SCARD', P .. 'runflows:' .. name) or 0 }
    end
    return W.json({ runs = W.array(list) })
end)
