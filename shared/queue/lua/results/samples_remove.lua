--[[
samples_remove: removes pieces of samples files from their stream: of a file that was stored, or that never ends.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1...]     n times: entry (stream id), bytes (size of the whole file for its first piece, otherwise 0), at most 1,000

Returns "ok". It may be repeated.
Cost    O(n).
--]]
verb('samples_remove', 'drain', function(args)
    if #args < 2 or #args > 2000 or #args % 2 ~= 0 then
        refuse('expected 1 to 1000 times entry bytes')
    end
    for i = 1, #args, 2 do
        if not args[i]:find('^%d+%-%d+$') then
            refuse('\'' .. args[i]:sub(1, 40) .. '\' is no stream id')
        end
        integer_arg(args, i + 1, 0, SPAN, 'bytes')
    end
    local freed = 0
    for i = 1, #args, 2 do
        if call('XDEL', PREFIX .. 'samples', args[i]) == 1 then
            freed = freed + tonumber(args[i + 1])
        end
    end
    if call('XLEN', PREFIX .. 'samples') == 0 then
        call('HDEL', PREFIX .. 'n', 'samples_bytes') -- Whatever was written by hand, an empty stream has room.
    else
        Queue.bump('samples_bytes', -freed)
    end
    return 'ok'
end)
