--[[
complete_many: completes several attempts. Each succeeds or fails by itself.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] n      1 to 64
ARGV[2...]     n times complete's arguments

Returns an array of n words as complete's; or "error " and the reason, for one whose record is out of shape.
Cost    n times complete's. Runs, counters and time are read and written once; plain ends share the writes to sets and lists.
--]]
verb('complete_many', 'drain', function(args)
    local n = integer_arg(args, 1, 1, 64, 'n')
    args_exactly(args, 1 + 3 * n, 'n, then n times id token part')
    -- Checks the permission first: leases are removed last, and then it would be too late for an error.
    Queue.repairing('leases', call, 'ZREM', PREFIX .. 'leases', '')
    local ends = PlainEnds.open(args, 2, n)
    for i = 1, n do
        local ok, word = pcall(PlainEnds.one, ends, i)
        ends.words[i] = ok and word or 'error ' .. error_text(word, args[3 * i - 1])
    end
    PlainEnds.write(ends)
    return ends.words
end)
