-- Actions of a group by age, to remove old ones.
CREATE INDEX actions_group ON actions (action_group, place);
