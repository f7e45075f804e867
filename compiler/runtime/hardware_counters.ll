; Hardware counters of a call, read between its steps.

; Table, set by Python (see hardware_counters.py): files of counters, their number, and where the next value goes.
@counters = global { ptr, i64, ptr } zeroinitializer, align 64

declare i64 @read(i32, ptr, i64)

; Generated code calls this between steps.
define void @tilewright_mark() {
entry:
  %files = load ptr, ptr @counters
  %count_slot = getelementptr { ptr, i64, ptr }, ptr @counters, i64 0, i32 1
  %count = load i64, ptr %count_slot
  %value_slot = getelementptr { ptr, i64, ptr }, ptr @counters, i64 0, i32 2
  %values = load ptr, ptr %value_slot
  %end = getelementptr i64, ptr %values, i64 %count
  store ptr %end, ptr %value_slot
  br label %counter

counter:
  %k = phi i64 [ 0, %entry ], [ %k_next, %counter ]
  %file_slot = getelementptr i32, ptr %files, i64 %k
  %file = load i32, ptr %file_slot
  %value = getelementptr i64, ptr %values, i64 %k
  %bytes = call i64 @read(i32 %file, ptr %value, i64 8)
  %k_next = add i64 %k, 1
  %more = icmp ult i64 %k_next, %count
  br i1 %more, label %counter, label %done

done:
  ret void
}
