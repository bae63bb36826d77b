--[[
complete_many: several attempts' work is done, each on its own: one that is stale does not hold the others up.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] n      1 to 64
ARGV[2...]     n times complete's arguments

Returns an array of n words as complete's; or "error " and the reason, for one whose record is out of shape.
Cost    n times complete's; runs, counters and time are read and written once, and what plain ends take out of sets and add to lists.
--]]
verb('complete_many', 'drain', function(args)
    local n = integer_arg(args, 1, 1, 64, 'n')
    args_exactly(args, 1 + 3 * n, 'n, then n times id token part')
    -- What is gathered is taken out of its sets last: who may not do that is told before anything is written.
    Queue.repairing('leases', call, 'ZREM', PREFIX .. 'leases', '')
    local ends = PlainEnds.open(args, 2, n)
    for i = 1, n do
        local ok, word = pcall(PlainEnds.one, ends, i)
        ends.words[i] = ok and word or 'error ' .. error_text(word, args[3 * i - 1])
    end
    PlainEnds.write(ends)
    return ends.words
end)
