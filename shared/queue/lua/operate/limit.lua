--[[
limit: sets caps on what runs at once, and a run's share.

KEYS[1] prefix "evalq:{queue}:"
ARGV[1] kind   cap_run, cap_suite (leases at once; 0: no cap) or weight (percent of a normal run's share, 1 to 10000)
ARGV[2] name   of the run or suite
ARGV[3] value  integer

Returns "ok".
Cost    O(C); raising a run's cap brings back at most 100 flows, later calls the rest.
--]]
verb('limit', 'drain', function(args)
    args_exactly(args, 3, 'kind name value')
    local kind, name = args[1], args[2]
    local value = integer_arg(args, 3, 0, 1000000, 'value')
    if kind == 'cap_run' and name_ok(name, 64) then
        Flow.run(name).cap = value
        call('HSET', PREFIX .. 'run:' .. name, 'cap', value)
        Flow.unpark(name)
    elseif kind == 'weight' and name_ok(name, 64) and value >= 1 and value <= 10000 then
        Flow.run(name).weight = value
        call('HSET', PREFIX .. 'run:' .. name, 'weight', value)
    elseif kind == 'cap_suite' and name_ok(name, 32) then
        Flow.limit_suite(name, 'cap', value)
    else
        refuse('kind must be cap_run, cap_suite or weight (1 to 10000), and name a name')
    end
    return 'ok'
end)
