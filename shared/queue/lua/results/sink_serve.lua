--[[
sink_serve: notes which logger serves the sink, and returns which one did before.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] sink   name of a registered sink
ARGV[2] logger its id, at most 64 of [A-Za-z0-9._-], new with each start
ARGV[3] place  for people: host and directory

Returns {logger, place} of the logger that called last; "" twice: none did.
Cost    O(1).
--]]
verb('sink_serve', 'drain', function(args)
    args_exactly(args, 3, 'sink logger place')
    local sink = Results.sink_arg(args)
    if not name_ok(args[2], 64) then
        refuse('logger must be 1 to 64 of [A-Za-z0-9._-]')
    end
    if call('ZSCORE', PREFIX .. 'sinks', sink) == false then
        error({ err = 'EVQ_NOT_FOUND sink \'' .. sink .. '\' is not registered' }, 0)
    end
    local last = call('HMGET', PREFIX .. 'sink:' .. sink, 'logger', 'place')
    local place = View.printable(args[3]):sub(1, 512)
    if last[1] ~= args[2] or last[2] ~= place then -- A lone logger repeats this call; write only changes.
        call('HSET', PREFIX .. 'sink:' .. sink, 'logger', args[2], 'place', place)
    end
    return { last[1] or '', last[2] or '' }
end)
