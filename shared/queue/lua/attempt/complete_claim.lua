--[[
complete_claim: calls complete, then claim, in one round trip.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1..3]     complete's arguments
ARGV[4...]     claim's arguments

Returns {complete's word, claim's reply}.
Cost    complete's and claim's.
--]]
verb('complete_claim', 'claim', function(args)
    if #args < 8 then
        refuse('expected complete\'s 3 arguments, then claim\'s')
    end
    local key, claim = Complete.read(args, 1), Claim.read(args, 4)
    return { Complete.run(key, args[2], args[3]), Claim.run(claim) }
end)
