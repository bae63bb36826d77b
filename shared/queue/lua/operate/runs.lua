--[[
runs: lists the known runs, newest submit first, at most a thousand a call.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] cursor "" first, then what the page before gave. May be left out

Returns JSON {"cursor", "runs": [{"run", "last_submit_ms", "counts": {state: n}, "paused", "cap", "weight", "active", "flows"}]};
        cursor "" at the end. A run that is submitted to meanwhile moves to the front: others may be in two pages.
Cost    O(log N + runs of the page).
--]]
local RUNS_PAGE = 1000

local function view_of(name, last_submit_ms)
    local counts = {}
    local run = Keys.tried(Flow.run, name) or { paused = false, cap = 0, weight = 100, active = 0 }
    local numbers = Keys.tried(View.counts, name) or {}
    for k, state in ipairs(STATES) do
        counts[state] = tonumber(numbers[k]) or 0
    end
    return { run = name, last_submit_ms = last_submit_ms, counts = counts, paused = run.paused, cap = run.cap,
        weight = run.weight, active = run.active, flows = Keys.tried(call, 'SCARD', PREFIX .. 'runflows:' .. name) or 0 }
end

verb('runs', 'ro', function(args)
    local cursor = args[1] or ''
    if #args > 1 or not cursor:find('^%d*$') or #cursor > 9 then
        refuse('expected no argument, or a cursor: "" or what the page before gave')
    end
    local list = {}
    local from = tonumber(cursor) or 0
    local rows = call('ZREVRANGE', PREFIX .. 'runs', from, from + RUNS_PAGE, 'WITHSCORES') -- One more: whether there is.
    local more = #rows > 2 * RUNS_PAGE
    for i = 1, math.min(#rows, 2 * RUNS_PAGE), 2 do
        if not run_is_internal(rows[i]) then
            list[#list + 1] = view_of(rows[i], tonumber(rows[i + 1]))
        end
    end
    return View.json({ cursor = more and text_of(from + RUNS_PAGE) or '', runs = View.array(list) })
end)
