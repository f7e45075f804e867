; Timeline of a call: the clock between its steps, and when each thread took part in each parallel region.
;
;   marks    i64 ticks
;   spans    { i64 thread, i64 begin, i64 end }; those beyond the last are counted and lost
;
; Generated code calls @tilewright_mark between steps, and @timed_parallel in place of @tilewright_parallel (see thread_team.ll).

%task = type { ptr, ptr }                       ; function, arguments
%span = type { i64, i64, i64 }

; Table, set by Python (see timeline.py): marks, spans, most spans; numbers of marks and of spans so far.
@timeline = global { ptr, ptr, i64, i64, i64 } zeroinitializer, align 64

define void @tilewright_mark() {
  %now = call i64 @ticks()
  %marks = load ptr, ptr @timeline
  %count_slot = getelementptr { ptr, ptr, i64, i64, i64 }, ptr @timeline, i64 0, i32 3
  %count = load i64, ptr %count_slot
  %slot = getelementptr i64, ptr %marks, i64 %count
  store i64 %now, ptr %slot
  %more = add i64 %count, 1
  store i64 %more, ptr %count_slot
  ret void
}

define void @timed_parallel(ptr %function, ptr %arguments, i64 %max_chunks, i64 %threads) {
  %task = alloca %task, align 8
  %arguments_slot = getelementptr %task, ptr %task, i64 0, i32 1
  store ptr %function, ptr %task
  store ptr %arguments, ptr %arguments_slot
  call void @tilewright_parallel(ptr @timed_chunks, ptr %task, i64 %max_chunks, i64 %threads)
  ret void
}

; Run the task's function for a thread of the region, and record when.
define internal void @timed_chunks(ptr %task, ptr %claimer, i64 %chunk, i64 %chunks) {
entry:
  %arguments_slot = getelementptr %task, ptr %task, i64 0, i32 1
  %function = load ptr, ptr %task
  %arguments = load ptr, ptr %arguments_slot
  %begin = call i64 @ticks()
  call void %function(ptr %arguments, ptr %claimer, i64 %chunk, i64 %chunks)
  %end = call i64 @ticks()
  %count_slot = getelementptr { ptr, ptr, i64, i64, i64 }, ptr @timeline, i64 0, i32 4
  %count = atomicrmw add ptr %count_slot, i64 1 monotonic
  %most_slot = getelementptr { ptr, ptr, i64, i64, i64 }, ptr @timeline, i64 0, i32 2
  %most = load i64, ptr %most_slot
  %fits = icmp ult i64 %count, %most
  br i1 %fits, label %number, label %done

number:
  %alone = icmp eq ptr %claimer, null
  br i1 %alone, label %record, label %member

member:
  %own_slot = getelementptr i64, ptr %claimer, i64 1
  %own = load i64, ptr %own_slot
  br label %record

record:
  %thread = phi i64 [ 0, %number ], [ %own, %member ]
  %spans_slot = getelementptr { ptr, ptr, i64, i64, i64 }, ptr @timeline, i64 0, i32 1
  %spans = load ptr, ptr %spans_slot
  %thread_slot = getelementptr %span, ptr %spans, i64 %count, i32 0
  %begin_slot = getelementptr %span, ptr %spans, i64 %count, i32 1
  %end_slot = getelementptr %span, ptr %spans, i64 %count, i32 2
  store i64 %thread, ptr %thread_slot
  store i64 %begin, ptr %begin_slot
  store i64 %end, ptr %end_slot
  br label %done

done:
  ret void
}

declare void @tilewright_parallel(ptr, ptr, i64, i64)
