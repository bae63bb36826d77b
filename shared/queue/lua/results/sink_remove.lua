--[[
sink_remove: removes a sink. Nothing is kept for it any more.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] sink   name

Returns "ok".
Cost    what it alone held back is trimmed, at most 10,000 entries.
--]]
verb('sink_remove', 'drain', function(args)
    args_exactly(args, 1, 'sink')
    local sink = Results.sink_arg(args)
    call('ZREM', PREFIX .. 'sinks', sink)
    call('UNLINK', PREFIX .. 'sink:' .. sink)
    redis.pcall('XGROUP', 'DESTROY', PREFIX .. 'results', sink)
    Results.trim()
    return 'ok'
end)
