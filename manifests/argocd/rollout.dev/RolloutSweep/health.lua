-- A run or a sweep is like a Job: Progressing until it has finished, so that the next sync wave waits for its result.
local hs = { status = "Progressing", message = "Waiting for the operator" }
if obj.status == nil or obj.status.conditions == nil then
  return hs
end
local generation = obj.metadata.generation
if generation ~= nil and (obj.status.observedGeneration or 0) < generation then
  hs.message = "Waiting for the operator to see the newest spec"
  return hs
end
local found = {}
for _, condition in ipairs(obj.status.conditions) do
  if condition.status == "True" or condition.type == "Ready" then
    found[condition.type] = condition
  end
end
if found.Finished ~= nil then
  hs.status = found.Finished.reason == "Succeeded" and "Healthy" or "Degraded"
  hs.message = found.Finished.reason .. ": " .. (found.Finished.message or "")
elseif found.Stalled ~= nil then
  hs.status = "Degraded"
  hs.message = found.Stalled.reason .. ": " .. (found.Stalled.message or "")
elseif found.Suspended ~= nil then
  hs.status = "Suspended"
  hs.message = found.Suspended.message or "Suspended"
elseif found.Ready ~= nil then
  hs.message = found.Ready.reason .. ": " .. (found.Ready.message or "")
end
return hs
