"""Survey of performance: random programs, measured against peers and the roofline, and grouped by what the slow ones share.

draw_program(seed, index, kind)           a program as Python source          drawing, operators, fused_programs, networks
workload(program), roofline_seconds       operations and bytes of its graph   roofline
features(graph)                           properties of its Graph IR          features
measure(program, peers, threads)          one row of results                  measure, rows
Workers                                   processes that may crash or hang    worker
summarize(rows)                           worst programs, groups, cost model  summary
"""
