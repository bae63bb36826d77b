--[[
best_get: the best checkpoint of a run.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] run
ARGV[2] metric "" for the run's first by name

Returns {metric, value, step, job, checkpoint}, or nil.
Cost    O(metrics of the run).
--]]
verb('best_get', 'ro', function(args)
    args_exactly(args, 2, 'run metric')
    if not name_ok(args[1], 64) then
        refuse('run must be 1 to 64 of [A-Za-z0-9._-]')
    end
    local metric = args[2]
    if metric == '' then
        local names = call('HKEYS', P .. 'best:' .. args[1])
        table.sort(names)
        metric = names[1]
    end
    local text = metric and call('HGET', P .. 'best:' .. args[1], metric)
    local ok, best = pcall(cjson.decode, text or '')
    if not ok or type(best) ~= 'table' then
        return false
    end
    return { metric, tostring(best.value), tostring(best.step), tostring(best.job), tostring(best.checkpoint) }
end)
