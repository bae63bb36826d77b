--[[
best_put: stores the best checkpoint of a run by one metric, which a logger found.

KEYS[1] prefix     "evalq:{queue}:"
ARGV[1] run, [2] metric, [3] value (text, 17 digits), [4] step, [5] job, [6] checkpoint

Returns "ok".
Cost    O(1).
--]]
verb('best_put', 'drain', function(args)
    args_exactly(args, 6, 'run metric value step job checkpoint')
    if not name_ok(args[1], 64) or #args[2] < 1 or #args[2] > 255 or args[2]:find('[%z\1-\31]') then
        refuse('run must be a name, metric 1 to 255 printable bytes')
    end
    if not tonumber(args[3]) or #args[3] > 40 or #args[5] > 255 or #args[6] > 2048 then
        refuse('value must be a number, job at most 255 and checkpoint at most 2048 bytes')
    end
    integer_arg(args, 4, 0, SPAN - 1, 'step')
    call('HSET', PREFIX .. 'best:' .. args[1], args[2],
        cjson.encode({ value = args[3], step = args[4], job = args[5], checkpoint = args[6] }))
    return 'ok'
end)
