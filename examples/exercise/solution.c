/* A submitted solution: the sum, the mean, or the distinct ones of the numbers from 0 to 999 on its standard input; or it guesses
   a number from 1 to 1000, and reads whether it is higher or lower. */
#include <stdio.h>
#include <string.h>

static int guess(void)
{
    int low = 1, high = 1000;
    char answer[16];
    while (low <= high) {
        int middle = (low + high) / 2;
        printf("%d\n", middle);
        /* Without this the guess stays in a buffer, and both sides wait. */
        fflush(stdout);
        if (scanf("%15s", answer) != 1)
            return 1;
        if (strcmp(answer, "right") == 0)
            return 0;
        if (strcmp(answer, "higher") == 0)
            low = middle + 1;
        else
            high = middle - 1;
    }
    return 1;
}

int main(int count, char **arguments)
{
    static int seen[1000];
    long sum = 0, numbers = 0;
    int number;
    if (count < 2)
        return 2;
    if (strcmp(arguments[1], "guess") == 0)
        return guess();
    while (scanf("%d", &number) == 1) {
        if (strcmp(arguments[1], "distinct") == 0 && !seen[number]++)
            printf("%d\n", number);
        sum += number;
        numbers++;
    }
    if (strcmp(arguments[1], "sum") == 0)
        printf("%ld\n", sum);
    if (strcmp(arguments[1], "mean") == 0)
        printf("%.6f\n", (double)sum / numbers);
    return 0;
}
