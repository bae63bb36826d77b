--[[
sink_replay: delivers everything in the stream to the sink again.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] sink   name of a registered sink

Returns "ok".
Cost    O(pending).
--]]
verb('sink_replay', 'drain', function(args)
    args_exactly(args, 1, 'sink')
    local sink = Results.sink_arg(args)
    if call('ZSCORE', PREFIX .. 'sinks', sink) == false then
        error({ err = 'EVQ_NOT_FOUND sink \'' .. sink .. '\' is not registered' }, 0)
    end
    redis.pcall('XGROUP', 'DESTROY', PREFIX .. 'results', sink)
    Queue.repairing('results', call, 'XGROUP', 'CREATE', PREFIX .. 'results', sink, '0', 'MKSTREAM')
    Results.sink_called(sink)
    return 'ok'
end)
