# Sourced by jobs.sh and rounds.sh: a rank that adds up its job's number over its world, and what the lines of such ranks mean.
# PROGRAM is tests/launch.rs, compiled. Its worker prints "LAB NUMBER rank R of N: total T" or "LAB NUMBER error: TEXT".
rank=("$PROGRAM" worker --exact --ignored --nocapture)

# What the ranks of the job NUMBER, of SIZE ranks, have said in FILE: one word, and what they said where it is not `right`.
#   right    each rank is there once, and the total is that of this job's ranks
#   refused  every rank has been told that another job meets at this place, with the names of both
#   MIXED    a rank has been in a world that is not the job's
#   other    anything else
# verdict FILE NUMBER SIZE
verdict() {
    awk -v number="$2" -v size="$3" '
        { all = all " / " $0 }
        match($0, "LAB " number " ") { said[++count] = substr($0, RSTART + RLENGTH) }
        END {
            for (i = 1; i <= count; i++) {
                if (split(said[i], word, /[ :]+/) == 6 && word[1] == "rank") {
                    if (word[4] != size || word[6] != number * size) mixed = 1
                    if (!seen[word[2]]++) right++
                } else if (names_both(said[i])) refused++
            }
            line = mixed ? "MIXED" : count != size ? "other" : right == size ? "right" : refused == size ? "refused" : "other"
            if (line != "right") {
                if (!count) line = line ": no rank has said anything: " substr(all, 1, 700)
                for (i = 1; i <= count; i++) line = line " | " substr(said[i], 1, 700)
            }
            print line
        }
        # Each launcher names its jobs in its own words; of two jobs the words differ.
        function names_both(text,   job, first) {
            while (match(text, /Slurm.s job [0-9]+ step [0-9]+|Open MPI.s job [^ ;,:)]+|mpirun.s process [0-9]+/)) {
                job = substr(text, RSTART, RLENGTH)
                if (!first) first = job
                else if (job != first) return 1
                text = substr(text, RSTART + RLENGTH)
            }
            return 0
        }' "$1"
}
