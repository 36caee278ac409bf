#!lua flags=no-writes
local info = redis.call('INFO', 'replication')
local offset = string.match(info, 'master_repl_offset:(%d+)')
if string.match(info, 'role:(%a+)') ~= 'master' or string.match(info, 'master_replid:(%w+)') ~= ARGV[3] then
  return 'changed'
end
if offset ~= ARGV[1] and offset ~= ARGV[2] then return 'written ' .. offset end
local owned = {}
for line in string.gmatch(redis.call('CLUSTER', 'NODES'), '[^\n]+') do
  local flags = string.match(line, '^%S+ %S+ (%S+)')
  if string.find(flags, 'myself', 1, true) then
    for word in string.gmatch(line, '%S+') do
      local first, last = string.match(word, '^(%d+)%-(%d+)$')
      first = first or string.match(word, '^%d+$')
      if first then owned[#owned + 1] = {tonumber(first), tonumber(last or first)} end
    end
    -- Before the slots there are two times and an epoch.
    for _ = 1, 3 do table.remove(owned, 1) end
  end
end
local ranges = {}
for i = 5, #ARGV, 2 do
  local first, last, found = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), false
  for _, range in ipairs(owned) do
    if range[1] <= first and last <= range[2] then found = true break end
  end
  if not found then return 'changed' end
  ranges[#ranges + 1] = ARGV[i]
  ranges[#ranges + 1] = ARGV[i + 1]
end
local done = redis.pcall('CLUSTER', 'DELSLOTSRANGE', unpack(ranges))
if done.err then return 'refused ' .. done.err end
for i = 1, #ranges, 2 do
  for slot = tonumber(ranges[i]), tonumber(ranges[i + 1]) do
    done = redis.pcall('CLUSTER', 'SETSLOT', slot, 'NODE', ARGV[4])
    if done.err then
      -- Those that are assigned already must be unassigned before they can be added.
      for j = 1, #ranges, 2 do
        for back = tonumber(ranges[j]), tonumber(ranges[j + 1]) do
          redis.pcall('CLUSTER', 'DELSLOTS', back)
        end
      end
      local undone = redis.pcall('CLUSTER', 'ADDSLOTSRANGE', unpack(ranges))
      if undone.err then return 'broken ' .. undone.err end
      return 'refused ' .. done.err
    end
  end
end
return 'held ' .. offset
