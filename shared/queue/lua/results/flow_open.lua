--[[
flow_open: returns the smallest unfinished step of a flow, so that a sink can wait for it.

KEYS[1] prefix  "evalq:{queue}:"
ARGV[1] run, [2] variant, [3] suite

Returns the step, or -1.
Cost    O(S log n), S sessions with open jobs, at most 64.
--]]
verb('flow_open', 'ro', function(args)
    args_exactly(args, 3, 'run variant suite')
    if not name_ok(args[1], 64) or not name_ok(args[2], 32) or not name_ok(args[3], 32) then
        refuse('run, variant and suite must be names')
    end
    local smallest
    for _, set in ipairs({ 'open:', 'openkeep:' }) do
        local key, from = PREFIX .. set .. args[1] .. '/' .. args[2] .. '/' .. args[3], '-inf'
        for _ = 1, 64 do
            local place = tonumber(call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
            if not place then
                break
            end
            local step = place % SPAN
            smallest = math.min(smallest or step, step)
            from = text_of(place - step + SPAN)
        end
    end
    return text_of(smallest or -1)
end)
