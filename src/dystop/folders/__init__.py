"""Run folders: what lies in them, who writes it, and whose code they may name.

run_folder      a run's folder: create, open, finish
record_log      `records.jsonl`: append, read, and the lock of its writer
late_scores     scores that came after the record of their round
trained_models  models that a run leaves behind
folder_kinds    runs, testbeds, comparisons, sweeps: recognise a folder, and how to resume it
environment     versions, device, threads, memory and disk
trust           code of a folder that somebody else made
"""
