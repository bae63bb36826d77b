--[[
best_get: returns the best checkpoint of a run.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] run
ARGV[2] metric "" for the run's first by name
ARGV[3] "find": accept a part of the metric's name between slashes, and say why there is none. May be left out

Returns {metric, value, step, job, checkpoint}, or nil. With "find" never nil, but {"", why, name...}; why is
        "run"     the run is not known, "sink" no logger ever had a sink `best`, "result" no result reached it yet,
        "metric"  the run has no such metric; the names that it has, at most 64,
        "several" the part is in several names; these names, at most 64.
Cost    O(metrics of the run).
--]]
local NAMES_MAX = 64

local function best_of(run, metric)
    local text = metric and call('HGET', PREFIX .. 'best:' .. run, metric)
    local ok, best = pcall(cjson.decode, text or '')
    if not ok or type(best) ~= 'table' then
        return nil
    end
    return { metric, tostring(best.value), tostring(best.step), tostring(best.job), tostring(best.checkpoint) }
end

-- The names that have `part` as one or more of their words between slashes.
local function names_with(names, part)
    local found = {}
    for _, name in ipairs(names) do
        if string.find('/' .. name .. '/', '/' .. part .. '/', 1, true) then
            found[#found + 1] = name
        end
    end
    return found
end

local function why_not(run, names, found)
    local reply = { '', 'result' }
    if #names > 0 then
        local list = #found > 0 and found or names
        reply[2] = #found > 0 and 'several' or 'metric'
        for i = 1, math.min(#list, NAMES_MAX) do
            reply[2 + i] = list[i]
        end
    elseif not call('ZSCORE', PREFIX .. 'runs', run) then
        reply[2] = 'run'
    elseif not call('ZSCORE', PREFIX .. 'sinks', 'best') then
        reply[2] = 'sink'
    end
    return reply
end

verb('best_get', 'ro', function(args)
    if #args < 2 or #args > 3 or (args[3] or 'find') ~= 'find' then
        refuse('expected run, metric and at most the word find')
    end
    local run, metric = args[1], args[2]
    if not name_ok(run, 64) then
        refuse('run must be 1 to 64 of [A-Za-z0-9._-]')
    end
    if metric ~= '' and not args[3] then
        return best_of(run, metric) or false
    end
    local names = call('HKEYS', PREFIX .. 'best:' .. run)
    table.sort(names)
    if metric == '' then
        return best_of(run, names[1]) or (args[3] and why_not(run, names, {}) or false)
    end
    local found = names_with(names, metric)
    local best = best_of(run, metric) or (#found == 1 and best_of(run, found[1]))
    return best or why_not(run, names, found)
end)
