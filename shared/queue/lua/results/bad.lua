--[[
bad: stores bytes that are not a valid record, with a reason, for people to look at.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] bytes  at most 64 KiB; the first 4 KiB are kept
ARGV[2] reason one sentence

Returns "ok".
Holds   what several sinks find in the same entry is set aside once: the reason names the entry.
Cost    O(1); at most 16 entries are compared.
--]]
verb('bad', 'drain', function(args)
    args_exactly(args, 2, 'bytes reason')
    local reason, data = args[2]:sub(1, 200), args[1]:sub(1, 4096)
    for _, entry in ipairs(call('XREVRANGE', PREFIX .. 'bad', '+', '-', 'COUNT', 16)) do
        local fields = {}
        for i = 1, #entry[2], 2 do
            fields[entry[2][i]] = entry[2][i + 1]
        end
        if fields.reason == reason and fields.data == data then
            return 'ok'
        end
    end
    Queue.add_bad('', args[2], args[1])
    return 'ok'
end)
