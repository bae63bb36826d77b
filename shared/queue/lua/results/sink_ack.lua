--[[
sink_ack: acknowledges entries that the sink has stored, and trims what every sink has acknowledged.

KEYS[1] prefix     "evalq:{queue}:"
ARGV[1] sink       name of a registered sink
ARGV[2] last_error what ails it, "" clears
ARGV[3...] id      stream ids, at most 10,000

Returns "ok".
Cost    O(n + sinks); at most 10,000 entries trimmed.
--]]
verb('sink_ack', 'drain', function(args)
    if #args < 2 or #args > 10002 then
        refuse('expected sink last_error, then at most 10000 ids')
    end
    local sink = Results.sink_arg(args)
    if call('ZSCORE', PREFIX .. 'sinks', sink) == false then
        error({ err = 'EVQ_NOT_FOUND sink \'' .. sink .. '\' is not registered' }, 0)
    end
    local ids = {}
    for i = 3, #args do
        if not args[i]:find('^%d+%-%d+$') then
            refuse('\'' .. args[i]:sub(1, 40) .. '\' is no stream id')
        end
        ids[#ids + 1] = args[i]
    end
    for from = 1, #ids, 1000 do
        call('XACK', PREFIX .. 'results', sink, unpack(ids, from, math.min(from + 999, #ids)))
    end
    Results.sink_called(sink, 'error', View.printable(args[2]):sub(1, 512))
    Results.trim()
    return 'ok'
end)
