--[[
sink_open: registers a sink and makes its consumer group, which begins at the first entry.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] sink   1 to 64 of [A-Za-z0-9._-], at most 64 sinks

Returns "ok".
Cost    O(1).
--]]
verb('sink_open', 'drain', function(args)
    args_exactly(args, 1, 'sink')
    local sink = Results.sink_arg(args)
    if call('ZSCORE', PREFIX .. 'sinks', sink) == false and call('ZCARD', PREFIX .. 'sinks') >= 64 then
        refuse('64 sinks are registered; remove one first')
    end
    local ok, problem = pcall(Queue.repairing, 'results', call, 'XGROUP', 'CREATE', PREFIX .. 'results', sink, '0', 'MKSTREAM')
    if not ok and not error_text(problem):find('BUSYGROUP') then
        error(problem, 0)
    end
    call('ZADD', PREFIX .. 'sinks', 'NX', NOW, sink)
    Results.sink_called(sink)
    return 'ok'
end)
