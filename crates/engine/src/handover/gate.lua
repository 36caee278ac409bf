-- Waits until the source has fenced its slots, then takes them over, without serving anybody in between.
--
-- KEYS[1]: a key of a slot that this node imports. ARGV: where the source is, milliseconds to wait, the two
-- forms in which it may redirect to this node, a slot to notify others by, the source, this node, and ranges
-- of the other slots.
--
-- It answers `taken`; `waited WHY` where it did nothing; `broken ERROR` where it did so in part.
redis.call('SET', KEYS[1], '', 'PX', 60000)
local answer = redis.pcall('MIGRATE', ARGV[1], ARGV[2], KEYS[1], 0, ARGV[3], 'COPY', 'REPLACE')
redis.call('DEL', KEYS[1])
local reply = answer.err or answer.ok or ''
local function ends_with(text, tail) return tail ~= '' and string.sub(text, -string.len(tail)) == tail end
local moved = string.find(reply, 'MOVED', 1, true)
if not (moved and (ends_with(reply, ARGV[4]) or ends_with(reply, ARGV[5]))) then
  return 'waited ' .. reply
end
local ranges = {}
for i = 9, #ARGV do ranges[#ranges + 1] = ARGV[i] end
local commands = {{'SETSLOT', ARGV[6], 'IMPORTING', ARGV[7]}, {'SETSLOT', ARGV[6], 'NODE', ARGV[8]}}
if #ranges > 0 then
  table.insert(commands, 1, {'DELSLOTSRANGE', unpack(ranges)})
  table.insert(commands, 2, {'ADDSLOTSRANGE', unpack(ranges)})
end
for _, command in ipairs(commands) do
  local done = redis.pcall('CLUSTER', unpack(command))
  if done.err then return 'broken ' .. done.err end
end
return 'taken'
