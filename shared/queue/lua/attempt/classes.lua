--[[
classes: lists the classes of the queue. A worker computes which of them fit its slots.

KEYS[1] prefix "evalq:{queue}:"

Returns {version, number, suite, needs...}; needs of a suite's own class are those registered last.
Cost    O(C).
--]]
verb('classes', 'ro', function(args)
    args_exactly(args, 0, 'none')
    local reply = { text_of(Queue.meta().classes_version) }
    local all = call('HGETALL', PREFIX .. 'classes')
    for i = 1, #all, 2 do
        local suite, needs = all[i + 1]:match('^(%S+) (%S*)$')
        if suite and integer_of(all[i], 1, CLASSES_MAX) then
            if needs == '*' then
                needs = call('HGET', PREFIX .. 'suite:' .. suite, 'needs') or ''
            end
            reply[#reply + 1] = all[i]
            reply[#reply + 1] = suite
            reply[#reply + 1] = needs
        end
    end
    return reply
end)
